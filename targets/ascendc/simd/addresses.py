"""Where an access of a nest lies in its buffer: a linear form of the nest's loops.

    address = base + sum over loops of coefficient * variable        in elements

Buffers on chip are row-major and dense; a reshaped view is a buffer of its own over the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monotile.targets.ascendc.tir import BLOCK_BYTES, item_bytes, tirx, tvm


class NoSimd(Exception):
    """Why a statement is not SIMD, in words."""


@dataclass
class Loop:
    """A loop of a nest."""

    variable: Any
    extent: int


@dataclass(frozen=True)
class Address:
    base: Any
    coefficients: tuple[int, ...]   # of the loops, outermost first


def dense_strides(buffer: Any) -> list[int]:
    strides = [1]
    for extent in reversed(list(buffer.shape)[1:]):
        strides.insert(0, strides[0] * int(extent))
    return strides


def address_of(buffer: Any, indices: Sequence[Any], loops: Sequence[Loop], analyzer: Any) -> Address:
    """Raises NoSimd for an index that is not linear in the loops."""
    zero = tirx.IntImm("int32", 0)
    linear: Any = zero
    for index, stride in zip(indices, dense_strides(buffer), strict=True):
        linear = linear + index * stride
    variables = [loop.variable for loop in loops]
    base = analyzer.simplify(tirx.stmt_functor.substitute(linear, dict.fromkeys(variables, zero)))
    coefficients = []
    rest = linear - base
    for variable in variables:
        one = {v: tirx.IntImm("int32", int(v.same_as(variable))) for v in variables}
        found = analyzer.simplify(tirx.stmt_functor.substitute(rest, one))
        if not isinstance(found, tirx.IntImm):
            raise NoSimd(f"{buffer.name}{list(indices)} is not linear in the loops")
        coefficients.append(int(found))
        rest = rest - variable * int(found)
    if not analyzer.can_prove_equal(rest, zero):
        raise NoSimd(f"{buffer.name}{list(indices)} is not linear in the loops")
    return Address(base, tuple(coefficients))


def on_block(buffer: Any, address: Address, vector: int, step: int, analyzer: Any) -> bool:
    """Does the address lie on 32 bytes whenever the vector loop is at a multiple of ``step``?"""
    unit = max(1, BLOCK_BYTES // item_bytes(buffer))
    factor = 0
    for position, coefficient in enumerate(address.coefficients):
        factor = math.gcd(factor, coefficient * step if position == vector else coefficient)
    base = analyzer.modular_set(address.base)
    return math.gcd(factor, math.gcd(int(base.coeff), int(base.base))) % unit == 0


def analyzer_of() -> Any:
    return tvm.arith.Analyzer()
