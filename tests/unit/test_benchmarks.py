"""The benchmarks' own judgement, without a GPU: what is poisoned, what counts as different, what is built."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from monotile.parity.tolerances import Bound

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        import run
        return run
    finally:
        sys.path.remove(str(FOLDER))


def test_new_tensors_are_poisoned(run: ModuleType) -> None:
    with run.poisoned():
        made = [torch.empty(64), torch.ones(2).new_empty(64), torch.empty_like(torch.ones(64)),
                torch.empty(64, dtype=torch.bfloat16), torch.empty(64, dtype=torch.float8_e4m3fn)]
        whole = torch.empty(64, dtype=torch.int32)
    assert all(t.float().isnan().all() for t in made) and (whole == torch.iinfo(torch.int32).max).all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_differences_are_found_and_told(run: ModuleType) -> None:
    exact = next(case for case in run.CASES.values() if case.bound.bits)
    close = dataclasses.replace(exact, bound=Bound("", relative=1e-3))
    x = torch.tensor([1.0, torch.nan, 0.0])
    changed = torch.tensor([1.0, torch.nan, -0.0])
    assert run.difference(exact, [x], [x.clone()]) == ""
    assert run.difference(exact, [x], [changed]) == "output 0: 1 of 3 differ, first at (2,): 0, not -0"
    assert run.difference(close, [x], [changed]) == ""
    assert "1 of 3 differ" in run.difference(close, [x], [torch.tensor([1.01, torch.nan, 0.0])])
    assert "float64" in run.difference(exact, [x], [x.double()])
    assert run.difference(exact, [x], [x, x]) == "1 outputs, the oracle has 2"


def test_inputs_follow_their_seed_and_sizes(run: ModuleType) -> None:
    for name, case in run.CASES.items():
        for sizes in case.checks[:2]:
            one, two, other = (case.inputs(torch.Generator().manual_seed(seed), **sizes) for seed in (1, 1, 2))
            assert all(torch.equal(run.as_bits(a), run.as_bits(b)) for a, b in zip(one, two, strict=True)), name
            small = sum(t.numel() for t in one) < 64
            differs = any(not torch.equal(run.as_bits(a), run.as_bits(b)) for a, b in zip(one, other, strict=True))
            assert small or differs, name


def test_kernels_are_built_without_a_gpu(tmp_path: Path) -> None:
    """Where nvcc is missing the row says so and the run fails; it never passes unbuilt."""
    from monotile.compat.errors import ToolchainMissing
    from monotile.targets.cuda import nvcc

    written = tmp_path / "result.json"
    done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--compile", "--only", "normalize_weight",
                           "--json", str(written)], capture_output=True, text=True, check=False)
    (row,) = json.loads(written.read_text())["rows"]
    try:
        nvcc.version()
    except ToolchainMissing as missing:
        assert done.returncode == 1 and str(missing)[:60] in row["wrong"][0]
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert row["kernels"][0]["kernel"] == "moe.normalize_weight" and row["kernels"][0]["registers"] > 0
