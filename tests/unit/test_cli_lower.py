"""``monotile lower``: which kernel, which parameters of which types, what is printed."""

import json
import re

import pytest

from monotile import cli
from monotile.commands import kernel_options
from monotile.targets.kernel import find_kernel, kernels


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["lower", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["lower", *words]) == 1
    got = capsys.readouterr()
    assert got.out == "" and got.err.startswith("monotile: ") and "Traceback" not in got.err
    return got.err


@pytest.mark.parametrize("target,sign", [
    ("cuda", "__global__"), ("ascend-910b", "hivm.hir.vdiv"), ("ascend-910c", "Ascend910_9392"),
    ("ascend-950", "__ubuf__")])
def test_every_target_prints_its_text(capsys: pytest.CaptureFixture[str], target: str, sign: str) -> None:
    assert sign in told(capsys, "moe.normalize_weight", "--target", target, "--set", "top_k=6")


def test_parameters_reach_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("normalize_weight", "--target", "ascend-910b", "--json")
    one, other = (json.loads(told(capsys, *words, "--set", f"top_k={k}", "--set", "tokens=64")) for k in (6, 9))
    assert (one["parameters"], other["parameters"]) == ({"top_k": 6}, {"top_k": 9})
    assert one["tiling"]["tokens"] == 64 and one["on_chip_bytes"] == find_kernel("moe.normalize_weight").live_bytes(
        find_kernel("moe.normalize_weight").tiling.replace(tokens=64), {"top_k": 6})
    assert one["text"] != other["text"]


def test_missing_parameters_are_those_of_the_first_case(capsys: pytest.CaptureFixture[str]) -> None:
    got = json.loads(told(capsys, "topk_gate", "--target", "ascend-910b", "--set", "top_k=5", "--json"))
    assert got["parameters"] == {"num_experts": 72, "top_k": 5}


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    npu = told(capsys, "normalize_weight", "--target", "ascend-910b", "--explain")
    assert re.search(r"^operations: .*vdiv=1", npu, re.MULTILINE) and "on_chip_bytes: " in npu
    assert "module" not in npu   # the text is left out
    simt = told(capsys, "normalize_weight", "--target", "ascend-950", "--explain")
    assert re.search(r"^regions:\n    SIM[DT]: \d+ statements, writes ", simt, re.MULTILINE) and "ub_bytes: " in simt
    gpu = told(capsys, "normalize_weight", "--target", "cuda", "--explain")
    assert "threads: 128" in gpu and re.search(r"^dynamic_shared_bytes: \d+$", gpu, re.MULTILINE)


def test_final(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("normalize_weight", "--target", "ascend-910b", "--set", "top_k=6")
    final, emitted = told(capsys, *words, "--final"), told(capsys, *words)
    assert "call @" in final and "call @" not in emitted   # routines in place of operations
    compiled = json.loads(told(capsys, *words, "--final", "--json"))["compiled"]
    assert compiled["ub_bytes"] > 0 and compiled["linked"]


@pytest.mark.parametrize("words,sentence", [
    (("gate", "--target", "cuda"), "there is no kernel 'gate'; monotile ops lists them"),
    (("topk_gate", "--target", "ascend-310"), "there is no target 'ascend-310'"),
    (("topk_gate", "--target", "ascend-910b", "--backend", "ascendc"), "'ascendc' is no backend of ascend-910b"),
    (("topk_gate", "--target", "ascend-910b", "--set", "experts=72"),
     "moe.topk_gate has no 'experts'; its parameters are num_experts, top_k, its tiling has tokens, threads"),
    (("topk_gate", "--target", "ascend-910b", "--set", "top_k=six"), "--set top_k must be a whole number, got 'six'"),
    (("topk_gate", "--target", "ascend-910b", "--set", "top_k=6.5"), "--set top_k must be a whole number, got '6.5'"),
    (("per_token_cast", "--target", "ascend-910b", "--set", "rounded=1"), "--set rounded must be true or false"),
    (("mhc_sinkhorn_fwd", "--target", "ascend-910b", "--set", "eps=small"), "--set eps must be a number, got 'small'"),
    (("topk_gate", "--target", "ascend-910b", "--set", "top_k"), "--set takes key=value, got 'top_k'"),
    (("topk_gate", "--target", "ascend-910b", "--set", "top_k=1", "--set", "top_k=2"), "--set top_k is given twice"),
    (("per_token_cast_long_row", "--target", "ascend-910b", "--set", "hidden=16384"),
     "no case launches quant.per_token_cast_long_row, so that it needs row_stride, source, fmt, scales, rounded, "
     "values: add --set row_stride=..."),
    (("topk_gate", "--target", "ascend-910b", "--set", "tokens=4096"), "the tile (tokens=4096"),
    (("topk_gate", "--target", "cuda", "--final"), "--final prints the final IR of AscendNPU-IR"),
], ids=lambda value: "-".join(value[2:]) if isinstance(value, tuple) else "")
def test_errors_are_sentences(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(capsys, *words)


def test_a_last_part_that_two_kernels_have(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = find_kernel("moe.topk_gate")
    monkeypatch.setattr("monotile.targets.kernel._registry", {"moe.topk_gate": kernel, "other.topk_gate": kernel})
    with pytest.raises(ValueError, match=r"'topk_gate' may be moe\.topk_gate or other\.topk_gate"):
        kernel_options.find("topk_gate")


def test_settings_have_the_declared_types() -> None:
    kernel = kernels()["quant.per_token_cast"]
    params, tiling = kernel_options.values(kernel, ["hidden=576", "rounded=false", "values=True", "fmt=e4m3",
                                                    "width=256"])
    assert params == {"hidden": 576, "rounded": False, "values": True, "fmt": "e4m3"} and tiling == {"width": 256}
    assert params["rounded"] is False and params["values"] is True
    params, _ = kernel_options.values(kernels()["mhc.mhc_sinkhorn_fwd"], ["eps=1e-6"])
    assert params == {"eps": 1e-6}
