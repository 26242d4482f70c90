"""How far an op's result may be from its oracle's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """``|got - want| <= atol + rtol * |want|``; both zero: to the bit."""

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def exact(self) -> bool:
        return self.rtol == 0.0 and self.atol == 0.0


_BOUNDS = {
    # every step divides by a sum and so forgets the rounding of the one before: a few ulp of numbers up to 1
    "mhc.mhc_sinkhorn_fwd": Bound(rtol=2e-6, atol=1e-6),
    # sums of products of the order of the gradient, each a few ulp off
    "mhc.mhc_sinkhorn_bwd": Bound(rtol=1e-5, atol=2e-6),
}


def bound(op: str) -> Bound:
    """The bound of an op by its public name, such as ``quant.per_token_cast``."""
    return _BOUNDS.get(op, Bound())
