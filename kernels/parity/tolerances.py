"""The one table of how far two results of an op may be apart, whoever made them: a device, an emulator, the oracle.

Tests, goldens, benchmarks and the command line read it; docs/parity.md prints it. A change of a bound is a change of
``VERSION``, which bundles carry.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True)
class Bound:
    """``|got - want| <= absolute + relative * |want|``, where NaN equals NaN; or equal bits.

    ``relative`` and ``absolute`` 0 without ``bits``: equal numbers, so that zeros of both signs and all NaN are alike.
    """

    why: str
    bits: bool = False
    relative: float = 0.0
    absolute: float = 0.0

    def __str__(self) -> str:
        if self.bits:
            return "equal bits"
        if not self.relative and not self.absolute:
            return "equal numbers"
        return f"{self.absolute:g} + {self.relative:g} |want|"

    @property
    def rtol_atol(self) -> dict[str, float]:
        """As ``torch.testing.assert_close`` takes it."""
        return {"rtol": self.relative, "atol": self.absolute}


_CODES = Bound("one division and one product in float32, each rounded once, and a conversion whose rounding is defined",
               bits=True)
_PRODUCT = Bound("one product in float32, rounded once more to the output type; only the payload of a NaN is free")
_MOVED = Bound("bytes are moved", bits=True)
_INDICES = Bound("which index wins is defined for ties and NaN", bits=True)

# By op, or by op/output where one output's bound is another.
TOLERANCES: dict[str, Bound] = {
    "quant.per_token_cast": _CODES,
    "quant.per_token_cast_with_sf_only": _CODES,
    "quant.per_token_cast_with_precomputed_sf": _CODES,
    "quant.cast_back": _PRODUCT,
    "quant.per_token_cast_back": _PRODUCT,
    "moe.topk_gate": _INDICES,
    "moe.normalize_weight": Bound("the order of the sum is defined, and the division is rounded once"),
    "moe.expand_to_fused": _MOVED,
    "moe.expand_to_fused_with_sf": _MOVED,
    "transpose.transpose": _MOVED,
    "transpose.batched_transpose": _MOVED,
    "mhc.mhc_sinkhorn_fwd": Bound("every step divides by a sum and so forgets the rounding of the one before: a few "
                                  "ulp of numbers up to 1", relative=2e-6, absolute=1e-6),
    "mhc.mhc_sinkhorn_bwd": Bound("sums of products of the order of grad, each a few ulp off", relative=1e-5,
                                  absolute=2e-6),
}


def bound(op: str, output: str = "") -> Bound:
    """The bound of an op's outputs, or of one of them. Raises ValueError for an op without one."""
    if f"{op}/{output}" in TOLERANCES:
        return TOLERANCES[f"{op}/{output}"]
    if op not in TOLERANCES:
        raise ValueError(f"{op} has no tolerance; tolerances.py lists those that have")
    return TOLERANCES[op]


def table() -> str:
    """The table in Markdown, as docs/parity.md prints it."""
    def cell(value: object) -> str:
        return str(value).replace("|", "\\|")

    rows = [f"| `{op}` | {cell(each)} | {cell(each.why)} |" for op, each in TOLERANCES.items()]
    return "\n".join(["| op | bound | why |", "| --- | --- | --- |", *rows])
