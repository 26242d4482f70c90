"""Cases of hyper-connections. Oracles compute in float64."""

from __future__ import annotations

import torch

from monotile.parity.cases import Call, op
from monotile.parity.draw import Draw
from monotile.reference.mhc import sinkhorn as reference

EPS = 2.0**-20   # near the usual 1e-6, and the same number in every precision
_CASES = [
    {"tokens": 0, "repeat": 10}, {"tokens": 1, "repeat": 10}, {"tokens": 129, "repeat": 10},
    {"tokens": 33, "repeat": 1}, {"tokens": 33, "repeat": 20}, {"tokens": 65, "repeat": 10, "size": 16},
    {"tokens": 37, "repeat": 20, "mult": 2},
]


def _logits(draw: Draw, tokens: int, mult: int, size: int) -> torch.Tensor:
    return draw.bell((tokens, mult, mult)) * size


@op("mhc.mhc_sinkhorn_fwd", outputs=("out",), cases=_CASES,
    oracle=lambda x, repeat, eps: reference.sinkhorn_normalize(x.double(), repeat, eps).float())
def mhc_sinkhorn_fwd(draw: Draw, tokens: int, repeat: int, mult: int = 4, size: int = 1) -> Call:
    return Call((_logits(draw, tokens, mult, size), repeat, EPS))


@op("mhc.mhc_sinkhorn_bwd", outputs=("grad_x",), cases=_CASES,
    oracle=lambda grad, x, repeat, eps: reference.sinkhorn_normalize_backward(
        grad.double(), x.double(), repeat, eps).float())
def mhc_sinkhorn_bwd(draw: Draw, tokens: int, repeat: int, mult: int = 4, size: int = 1) -> Call:
    x = _logits(draw, tokens, mult, size)
    return Call((draw.bell(x.shape), x, repeat, EPS))
