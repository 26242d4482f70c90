"""Every row of the benchmarks at its largest compared size: 4001 tokens of up to 7168 channels."""

import math
import sys
from pathlib import Path

import pytest
import torch

import monotile

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from cases import CASES, flat
from run import difference


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_largest_compared_size(name: str) -> None:
    case = CASES[name]
    sizes = max(case.checks, key=lambda sizes: math.prod(sizes.values()))
    inputs = case.inputs(torch.Generator().manual_seed(5), **sizes)
    got = flat(case.call(*(to_device(x) for x in inputs)))
    assert difference(case, [x.cpu() for x in got], flat(case.oracle(*inputs))) == ""


def to_device(x: torch.Tensor) -> torch.Tensor:
    """The tensor where the target's tensors live, strides kept."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=monotile.default_device()).copy_(x)
