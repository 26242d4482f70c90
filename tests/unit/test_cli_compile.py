"""``monotile compile``: what is compiled here runs where TileLang and compilers are not, or says why it does not."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import monotile
from monotile import cli
from monotile.reference.moe.normalize_weight import normalize_weight as oracle
from monotile.targets import launch, shipped
from monotile.targets.kernel import find_kernel
from monotile.targets.select import resolve, use_target

# A machine without compilers: nothing is on PATH, and neither TileLang nor the vendor's package can be imported.
ELSEWHERE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tilelang", "tvm", "ascendnpuir", "llvmlite"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
import torch, monotile
from monotile.targets import build
def refused(*a, **k): raise AssertionError("something was lowered or compiled")
build.lower = build.compile_source = refused
w = torch.rand((130, 6), generator=torch.Generator().manual_seed(0))
torch.save(monotile.moe.normalize_weight(w), sys.argv[1])
"""


def compiled(folder: Path, target: str, *words: str) -> dict[str, dict[str, object]]:
    """The manifest's kernels by name, after ``monotile compile``."""
    assert cli.main(["compile", "--target", target, *words, "--out", str(folder)]) == 0
    told = json.loads((folder / "kernels.json").read_text())
    return {each["op"]: each for each in told["kernels"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """normalize_weight of six choices, for a 910B and a 950."""
    made = tmp_path_factory.mktemp("compiled") / "kernels"
    for target in ("ascend-910b", "ascend-950"):
        compiled(made, target, "--kernel", "normalize_weight", "--set", "top_k=6")
    return made


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "kernels"))


def elsewhere(folder: Path, target: str, out: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key in ("PYTHONPATH", "HOME", "MONOTILE_EMULATOR")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", ELSEWHERE, str(out)], capture_output=True, text=True, check=False,
        env={**kept, "PATH": str(out.parent / "nothing"), "MONOTILE_KERNELS": str(folder), "KERNEL_TARGET": target,
             "MONOTILE_CACHE_DIR": str(out.parent / "cache"), **env})


@pytest.mark.parametrize("target", ["ascend-910b", "ascend-950"])
def test_it_runs_where_nothing_can_be_compiled(folder: Path, target: str, tmp_path: Path) -> None:
    done = elsewhere(folder, target, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    w = torch.rand((130, 6), generator=torch.Generator().manual_seed(0))
    for got, want in zip(torch.load(tmp_path / "out"), oracle(w), strict=True):
        assert torch.equal(got, want)
    assert not (tmp_path / "cache").exists()


def test_without_the_folder_that_machine_can_do_nothing(tmp_path: Path) -> None:
    """The test above would see a lowering."""
    done = elsewhere(Path(), "ascend-910b", tmp_path / "out", MONOTILE_KERNELS="")
    assert done.returncode != 0 and not (tmp_path / "out").exists()


def call(folder: Path, monkeypatch: pytest.MonkeyPatch, top_k: int = 6, target: str = "ascend-910b") -> None:
    monkeypatch.setenv("MONOTILE_KERNELS", str(folder))
    monkeypatch.setattr(launch, "_loaded", {})
    shipped._manifest.cache_clear()
    with use_target(target):
        monotile.moe.normalize_weight(torch.rand(9, top_k))


def test_a_changed_file_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (final,) = copy.rglob("final.generic.mlir")
    final.write_text(final.read_text().replace("vdiv", "vmul"))
    with pytest.raises(shipped.ShippedKernelError, match="is not what was compiled"):
        call(copy, monkeypatch)


def test_a_file_changed_with_its_own_manifest_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's manifest vouches for that of each kernel."""
    (final,) = copy.rglob("final.generic.mlir")
    final.write_text(final.read_text() + "\n")
    manifest = final.with_name("manifest.json")
    told = json.loads(manifest.read_text())
    told["files"][final.name] = hashlib.sha256(final.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(told))
    with pytest.raises(shipped.ShippedKernelError, match="is not what was compiled"):
        call(copy, monkeypatch)


def test_a_missing_file_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (final,) = copy.rglob("final.generic.mlir")
    final.unlink()
    with pytest.raises(shipped.ShippedKernelError, match="files are missing or changed"):
        call(copy, monkeypatch)


def test_kernels_of_another_source_are_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = copy / "kernels.json"
    told = json.loads(manifest.read_text())
    for each in told["kernels"]:
        each["source"] = "0" * 16
    manifest.write_text(json.dumps(told))
    with pytest.raises(shipped.ShippedKernelError, match=r"moe\.normalize_weight .* another version of its source"):
        call(copy, monkeypatch)


@pytest.mark.parametrize("text,words", [
    (None, "cannot be read"), ("{", "cannot be read"), ("[]", "has format None, this version reads 1"),
    ('{"format": 9, "kernels": []}', "has format 9, this version reads 1")])
def test_a_folder_that_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None,
                                       words: str) -> None:
    if text is not None:
        (tmp_path / "kernels.json").write_text(text)
    with pytest.raises(shipped.ShippedKernelError, match=words):
        call(tmp_path, monkeypatch)


@pytest.mark.parametrize("top_k,target,tile,words", [
    (7, "ascend-910b", {}, "it is there with top_k=6$"),
    (6, "ascend-910c", {}, r"it is there for ascend-910b \(npuir\), ascend-950 \(ascendc\)$"),
    (6, "ascend-910b", {"tokens": 64}, "it is there with the tiling threads=128, tokens=128$"),
])
def test_what_is_not_there_is_built_with_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch, top_k: int,
                                                   target: str, tile: dict[str, int], words: str) -> None:
    with monotile.override_tiling("moe.normalize_weight", **tile), pytest.warns(shipped.KernelNotShipped, match=words):
        call(folder, monkeypatch, top_k, target)


def test_what_is_there_gives_no_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(folder, monkeypatch)


def test_the_other_mode_of_the_emulator(folder: Path, tmp_path: Path) -> None:
    done = elsewhere(folder, "ascend-950", tmp_path / "out",
                     MONOTILE_EMULATOR={"checked": "fast", "fast": "checked"}[os.environ["MONOTILE_EMULATOR"]])
    assert "set the mode that it was compiled in" in done.stderr


def test_the_manifest_says_what_took_the_kernel(folder: Path) -> None:
    told = {each["target"]: each for each in json.loads((folder / "kernels.json").read_text())["kernels"]}
    assert set(told) == {"ascend-910b", "ascend-950"}   # the second command kept what the first wrote
    npuir = told["ascend-910b"]
    assert "bishengir-compile" in npuir["accepted"] and npuir["params"] == {"top_k": 6}
    files = {path.name for path in (folder / npuir["folder"]).iterdir()}
    assert {"source.mlir", "final.mlir", "final.generic.mlir", "compiled.json"} <= files


def test_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps([["moe.normalize_weight", {"top_k": 3}], ["normalize_weight", {"top_k": 4}]]))
    assert cli.main(["compile", "--target", "ascend-910b", "--spec", str(spec), "--out", str(tmp_path / "k")]) == 0
    with use_target("ascend-910b"):
        selection, kernel = resolve(), find_kernel("moe.normalize_weight")
    monkeypatch.setenv("MONOTILE_KERNELS", str(tmp_path / "k"))
    for top_k in (3, 4):
        tile = kernel.tile_for(selection.target, {"top_k": top_k})
        found = shipped.find(kernel, {"top_k": top_k}, tile, selection)
        assert found is not None and found.params == {"top_k": top_k}


def test_kernels_of_the_cases(tmp_path: Path) -> None:
    told = compiled(tmp_path / "k", "ascend-910b", "--ops", "moe.normalize_weight")
    assert set(told) == {"moe.normalize_weight"}
    wanted = {6, 8, 9, 1}   # of the cases
    held = json.loads((tmp_path / "k" / "kernels.json").read_text())["kernels"]
    assert {each["params"]["top_k"] for each in held} == wanted


@pytest.mark.parametrize("spec,words", [
    ("[1]", "must be a JSON list of"),
    ('[["moe.topk_gate", {"k": 1}]]', "moe.topk_gate takes num_experts, top_k, got k"),
    ('[["moe.gate", {}]]', "there is no kernel 'moe.gate'")])
def test_a_wrong_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, words: str) -> None:
    (tmp_path / "spec.json").write_text(spec)
    assert cli.main(["compile", "--target", "cuda", "--spec", str(tmp_path / "spec.json"), "--out",
                     str(tmp_path / "k")]) == 1
    assert words in capsys.readouterr().err and not (tmp_path / "k").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert cli.main(["compile", "--target", "ascend-910b", "--kernel", "normalize_weight", "--out", str(tmp_path)]) == 1
    assert "holds other files" in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["mine"]
