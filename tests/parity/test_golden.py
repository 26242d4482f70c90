"""Every op against what an H200 computed: the selected target's results, and the oracle's."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import monotile
from monotile import evidence
from monotile.parity import bundle, tolerances
from monotile.parity.cases import Case, cases, ops
from monotile.parity.difference import difference
from monotile.targets.launch import observed

FOLDER = Path(__file__).parents[1] / "golden" / "h200"
LIMIT = 4 << 20   # bytes in the repository
RECORDED = [case for case in cases() if case.op.name not in evidence.not_recorded()]


@functools.cache
def golden() -> bundle.Bundle:
    """Raises BundleError where none was recorded: on a machine with an H200, ``monotile parity record --target cuda
    --out tests/golden/h200/parity.safetensors``."""
    return bundle.load(FOLDER)


def holds(case: Case, results: dict, what: str) -> None:   # type: ignore[type-arg]
    for output, want in golden().results[case.name].items():
        found = difference(results[output], want, tolerances.bound(case.op.name, output), case.call.defined.get(output))
        assert found.holds, f"{case.name} {output}: {what} {found}"


def test_the_goldens_are_an_h200s_and_of_these_cases() -> None:
    about = golden().about
    assert "H200" in about.device and (about.target, about.executor) == ("cuda-sm90", "device")
    assert about.tolerances == tolerances.VERSION
    assert dict(golden().hashes) == {case.name: case.hash for case in RECORDED}
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= LIMIT


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_this_target_computes_what_the_gpu_did(case: Case, record_property: Callable[[str, object], None]) -> None:
    """And what the oracle says: this is what evidence is made of (tests/conftest.py)."""
    chosen = monotile.resolve(torch.empty(0, device=monotile.default_device()))
    place = (case.op.name, chosen.target.name, chosen.backend)
    record_property("place", place)
    with observed() as artifacts:
        results = case.run(monotile.default_device())
    if case.op.name not in evidence.not_recorded():
        holds(case, results, "this target and the H200 differ:")
    for output, want in case.expected().items():
        found = difference(results[output], want, tolerances.bound(case.op.name, output), case.call.defined.get(output))
        assert found.holds, f"{case.name} {output}: this target and the oracle differ: {found}"
    record_property("evidence", (*place, chosen.executor, evidence.compiler_of(artifacts), len(artifacts)))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_the_oracle_says_what_the_gpu_computed(case: Case) -> None:
    holds(case, case.expected(), "the oracle and the H200 differ:")


def test_what_is_not_recorded_is_an_op() -> None:
    assert evidence.not_recorded() <= set(ops())


def test_docs_print_the_table() -> None:
    assert tolerances.table() in (Path(__file__).parents[2] / "docs" / "parity.md").read_text()
