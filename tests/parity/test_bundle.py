"""Bundles: recorded, saved, read, held against each other; what is refused."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from monotile import cli
from monotile.parity import bundle, report
from monotile.parity.bundle import About, Bundle, BundleError
from monotile.parity.cases import cases

OPS = ["transpose.transpose", "mhc.mhc_sinkhorn_fwd", "moe.topk_gate", "moe.expand_to_fused"]


def of_oracle() -> Bundle:
    chosen = cases(OPS)
    about = About("no device", "ascend-910b", "npuir", "emulator", {"torch": torch.__version__}, 1, "2026-12-01")
    return Bundle(about, {c.name: c.hash for c in chosen}, {c.name: c.expected() for c in chosen})


@pytest.fixture(scope="module")
def made() -> Bundle:
    return of_oracle()


def changed(made: Bundle, case: str, output: str, at: tuple[int, ...], value: float) -> Bundle:
    tensor = made.results[case][output].clone()
    tensor[at] = value
    return dataclasses.replace(made, results={**made.results, case: {**made.results[case], output: tensor}})


def test_a_bundle_is_read_as_it_was_written(made: Bundle, tmp_path: Path) -> None:
    bundle.save(made, tmp_path / "folder" / "a.safetensors")
    for path in (tmp_path / "folder", tmp_path / "folder" / "a.safetensors"):
        again = bundle.load(path)
        assert (again.about, again.hashes) == (made.about, made.hashes)
        assert report.compare(again, made, cases(OPS)).holds


@pytest.mark.parametrize("case,output,at,value,words", [
    ("transpose.transpose[rows=65,columns=127,dtype=bfloat16]", "out", (3, 5), 1.5, r"at [3, 5]: got 1.5 (0x3fc0)"),
    ("mhc.mhc_sinkhorn_fwd[tokens=33,repeat=20]", "out", (7, 1, 2), 0.9, "at [7, 1, 2]: got 0.899999976"),
    ("moe.topk_gate[tokens=5,experts=8,k=8,values=equal]", "chosen", (4, 0), 3, "at [4, 0]: got 3, want 0"),
])
def test_a_changed_element_is_found(made: Bundle, tmp_path: Path, case: str, output: str, at: tuple[int, ...],
                                    value: float, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.save(made, tmp_path / "want.safetensors")
    bundle.save(changed(made, case, output, at, value), tmp_path / "got.safetensors")
    arguments = ["parity", "compare", str(tmp_path / "got.safetensors"), str(tmp_path / "want.safetensors"),
                 "--ops", ",".join(OPS)]
    assert cli.main([*arguments, "--report", str(tmp_path / "r.html")]) == 1
    told = capsys.readouterr().out
    assert f"{case} {output}: 1 of" in told and words.replace("\\", "") in told
    page = (tmp_path / "r.html").read_text()
    assert "does not hold" in page and words.replace("\\", "").split(": got ")[0].removeprefix("at ") in page
    assert cli.main([*arguments, "--json"]) == 1
    (miss,) = [r for r in json.loads(capsys.readouterr().out)["results"] if not r["holds"]]
    assert (miss["case"], miss["missed"], tuple(miss["first"][0]["at"])) == (case, 1, at)


def test_undefined_rows_may_hold_anything(made: Bundle) -> None:
    (case,) = [c for c in cases(["moe.expand_to_fused"]) if c.arguments.get("holes")]
    hole = int((~case.call.defined["out"][:, 0]).nonzero()[0])
    got = changed(made, case.name, "out", (hole, 0), 123.0)
    assert report.compare(got, made, cases(OPS)).holds


def test_equal_bundles_hold(made: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.save(made, tmp_path / "a.safetensors")
    assert cli.main(["parity", "compare", str(tmp_path), str(tmp_path), "--ops", ",".join(OPS)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("parity holds")


def test_missing_cases_do_not_hold(made: Bundle) -> None:
    name = next(iter(made.hashes))
    less = dataclasses.replace(made, hashes={k: v for k, v in made.hashes.items() if k != name},
                               results={k: v for k, v in made.results.items() if k != name})
    found = report.compare(less, made, cases(OPS))
    assert found.missing == (name,) and not found.holds and name in report.text(found)


def test_other_inputs_are_refused(made: Bundle) -> None:
    name = next(iter(made.hashes))
    other = dataclasses.replace(made, hashes={**made.hashes, name: "0"})
    with pytest.raises(BundleError, match="from different inputs: transpose") if name.startswith("transpose") else \
            pytest.raises(BundleError, match="from different inputs"):
        report.compare(other, made, cases(OPS))
    with pytest.raises(BundleError, match="other inputs than this version draws"):
        report.compare(other, other, cases(OPS))
    with pytest.raises(BundleError, match="version 0 of the tolerances, the other 1"):
        report.compare(dataclasses.replace(made, about=dataclasses.replace(made.about, tolerances=0)), made, cases(OPS))


def test_files_that_are_no_bundles(made: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    with pytest.raises(BundleError, match="there is no bundle"):
        bundle.load(tmp_path / "none.safetensors")
    with pytest.raises(BundleError, match="holds 0 bundles"):
        bundle.load(tmp_path)
    (tmp_path / "text.safetensors").write_text("no")
    with pytest.raises(BundleError, match="is no safetensors file"):
        bundle.load(tmp_path / "text.safetensors")
    save_file({"a": torch.zeros(1)}, str(tmp_path / "plain.safetensors"))
    with pytest.raises(BundleError, match="is no parity bundle"):
        bundle.load(tmp_path / "plain.safetensors")
    assert cli.main(["parity", "compare", str(tmp_path / "none.safetensors"), str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("monotile: there is no bundle")


def test_nothing_in_a_bundle_is_passed_over(made: Bundle) -> None:
    more = dataclasses.replace(made, hashes={**made.hashes, "moe.topk_gate[tokens=2]": "1"},
                               results={**made.results, "moe.topk_gate[tokens=2]": {"chosen": torch.zeros(1)}})
    with pytest.raises(BundleError, match=r"cases that this version has not: moe\.topk_gate\[tokens=2\]"):
        report.compare(more, made, cases(OPS))
    assert report.compare(more, more, cases(["transpose.transpose"])).holds   # of an op that is not compared
    with pytest.raises(BundleError, match="cases that this version has not"):
        report.compare(more, more, cases())
    name = cases(["transpose.transpose"])[1].name
    for outputs in ({}, {**made.results[name], "more": torch.zeros(1)}):
        other = dataclasses.replace(made, results={**made.results, name: outputs})
        with pytest.raises(BundleError, match="the op has out"):
            report.compare(made, other, cases(OPS))


def test_bundles_of_an_older_table_are_refused(made: Bundle) -> None:
    older = dataclasses.replace(made, about=dataclasses.replace(made.about, tolerances=0))
    with pytest.raises(BundleError, match=r"know version 0 of the tolerances, this is 1; record them anew"):
        report.compare(older, older, cases(OPS))


@pytest.mark.parametrize("metadata,words", [
    ("{", "its metadata is no JSON"), ("[]", "has format None"),
    ('{"format": 2}', "has format 2, this version reads 1"),
    ('{"format": 1}', "its metadata must have backend, cases, device"),
    ('{"format": 1, "cases": [], "other": 1}', "its metadata must have"),
])
def test_metadata_of_another_kind(metadata: str, words: str, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    save_file({"a/out": torch.zeros(1)}, str(tmp_path / "a.safetensors"), metadata={"monotile": metadata})
    assert cli.main(["parity", "compare", str(tmp_path), str(tmp_path)]) == 1
    assert words in capsys.readouterr().err


def test_a_report_goes_into_a_new_folder(made: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.save(made, tmp_path / "a.safetensors")
    page = tmp_path / "new" / "folder" / "report.html"
    assert cli.main(["parity", "compare", str(tmp_path), str(tmp_path), "--ops", OPS[0], "--report", str(page)]) == 0
    assert "Parity holds" in page.read_text() and "parity holds" in capsys.readouterr().out


def test_shapes_that_differ_are_a_miss_even_of_nothing(made: Bundle) -> None:
    name = cases(["transpose.transpose"])[0].name
    assert made.results[name]["out"].numel() == 0
    other = dataclasses.replace(made, results={**made.results, name: {"out": torch.zeros(0, 1).bfloat16()}})
    found = report.compare(other, made, cases(OPS))
    assert not found.holds and "in place of" in report.text(found) and "<tr class=miss>" in report.page(found)


def test_recording_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    from monotile.targets import select

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    select._cuda_capability.cache_clear()
    out = tmp_path / "a.safetensors"
    assert cli.main(["parity", "record", "--target", "cuda", "--ops", OPS[0], "--out", str(out)]) == 1
    assert "target cuda needs a GPU" in capsys.readouterr().err and not out.exists()


def test_the_page_escapes(made: Bundle) -> None:
    odd = dataclasses.replace(made, about=dataclasses.replace(made.about, device="<script>&"))
    page = report.page(report.compare(odd, made, cases(OPS)))
    assert "<script>" not in page and "&lt;script&gt;&amp;" in page


def test_record_writes_what_the_target_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from monotile.targets.select import resolve

    target = resolve().target.name
    out = tmp_path / "a.safetensors"
    assert cli.main(["parity", "record", "--target", "cuda" if target.startswith("cuda") else target,
                     "--ops", "moe.topk_gate", "--out", str(out)]) == 0
    assert "7 cases on" in capsys.readouterr().out
    found = bundle.load(out)
    assert found.about.target == target and set(found.hashes) == {c.name for c in cases(["moe.topk_gate"])}
    assert report.compare(found, of_oracle(), cases(["moe.topk_gate"])).holds
    assert cli.main(["parity", "record", "--target", target, "--ops", "moe.none", "--out", str(out)]) == 1
