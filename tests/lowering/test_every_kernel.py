"""Every kernel on every target: it lowers, the vendor's compiler takes it, one PrimFunc served all."""

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tilelang import tvm

from monotile import evidence
from monotile.targets.build import Artifact
from monotile.targets.kernel import find_kernel, kernels
from monotile.targets.launch import ahead_of_time
from monotile.targets.npuir import toolchain
from monotile.targets.spec import TARGETS, Target, target

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from cases import CASES, Case

PAIRS = [(chip, backend) for chip in TARGETS.values() for backend in chip.backends]


def built(case: Case, chip: Target, backend: str, compiled: bool) -> tuple[Artifact, ...]:
    sizes = {**case.sizes, **({"tokens": 5} if "tokens" in case.sizes else {"batches": 2, "rows": 192, "columns": 65})}
    inputs = case.inputs(torch.Generator().manual_seed(0), **sizes)
    with ahead_of_time(chip, backend, compiled=compiled) as artifacts:
        case.call(*inputs)
    return artifacts()


@pytest.mark.parametrize("chip,backend", PAIRS, ids=lambda v: str(v))
@pytest.mark.parametrize("name", CASES)
def test_it_is_built(name: str, chip: Target, backend: str, record_property: Callable[[str, object], None]) -> None:
    """By nvcc, by bishengir-compile, and for AscendC by the emulator's C++ compiler (and by bisheng where it is)."""
    if backend == "cuda" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc here: nothing is said of CUDA")
    record_property("place", (CASES[name].op, chip.name, backend))
    artifacts = built(CASES[name], chip, backend, compiled=True)
    for artifact in artifacts:
        assert artifact.directory is not None and any(artifact.directory.iterdir())
    record_property("evidence", (CASES[name].op, chip.name, backend, evidence.NOT_RUN, evidence.compiler_of(artifacts),
                                 len(artifacts)))


def test_no_kernel_is_left_out() -> None:
    seen = {a.op for case in CASES.values() for a in built(case, target("ascend-910b"), "npuir", compiled=False)}
    assert seen == set(kernels())


@pytest.mark.parametrize("name", CASES)
def test_one_primfunc_serves_all_targets(name: str) -> None:
    """Under one tiling, and for chips that convert low-bit numbers alike, the sources are one: names change nothing."""
    for artifact in built(CASES[name], target("ascend-910b"), "npuir", compiled=False):
        kernel = find_kernel(artifact.op)
        for chip in (target("ascend-910c"), target("ascend-950"), target("cuda")):
            alike = dataclasses.replace(chip, hardware_casts=artifact.target.hardware_casts)
            tvm.ir.assert_structural_equal(kernel.trace(alike, artifact.tile, artifact.params), artifact.source.func)


@pytest.mark.parametrize("name", CASES)
def test_no_element_loops(name: str) -> None:
    """The compiler adds none (the link check). Ours: positions that are data, and the one factor of a whole row."""
    for artifact in built(CASES[name], target("ascend-910b"), "npuir", compiled=False):
        accesses = toolchain._element_accesses(artifact.text)
        row = artifact.params.get("group") == artifact.params.get("hidden", 0)
        assert accesses <= int(row) or artifact.op == "moe.expand_to_fused", artifact.op
