"""Low-bit formats as TileLang expressions: the same bits on every target.

Each macro takes and gives TIR expressions. Where the target being traced for converts in hardware
(`monotile.compat.capability`) the conversion is a cast; elsewhere it is integer code of int32 and float32 operations
that every vector unit here has. Both round to nearest even and saturate; tests hold them equal for every code, every
midpoint and its neighbours.

    e4m3   1-4-3, bias 7, largest 448; exponent 15 is finite except 0x7F and 0xFF, which are NaN
    e2m1   1-2-1, bias 1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN: a NaN becomes +6, as NVIDIA's conversion has it
    ue8m0  the biased exponent byte of a power of two

A subexpression that appears twice is one object, so a backend evaluates it once.
"""

# No `from __future__ import annotations` here: TileLang reads annotations of kernel sources as objects.
from typing import Any

from monotile.compat import capability
from monotile.compat import language as T

Expr = Any

E4M3_MAX, E4M3_NAN = 448.0, 0x7F
E2M1_MAX, E2M1_NAN = 6.0, 0x7
E4M3 = "float8_e4m3fn"


def _code(x: Expr, mantissa: int, bias: int, largest: float, nan: int) -> Expr:
    """Sign and magnitude code (int32) of a float32 in a format of ``mantissa`` bits.

    Normal numbers round in the integer domain: half an ulp less one, plus the last kept bit, then a shift; the
    exponent's rebias is folded into the added constant. Subnormals are multiples of one unit, which the float adder
    itself rounds when the unit is the last place of the sum with 2**(24 - bias - mantissa).
    """
    dropped = 23 - mantissa
    rebias = (127 - bias) << mantissa
    smallest_normal = 2.0 ** (1 - bias)
    shifter = 2.0 ** (24 - bias - mantissa)
    shifter_bits = (127 + 24 - bias - mantissa) << 23
    bits = T.reinterpret(x, "int32")
    size = T.min(T.abs(x), T.float32(largest))
    size_bits = T.reinterpret(size, "int32")
    odd = T.bitwise_and(T.shift_right(size_bits, dropped), 1)
    normal = T.shift_right(size_bits + odd + ((1 << (dropped - 1)) - 1 - (rebias << dropped)), dropped)
    subnormal = T.reinterpret(size + T.float32(shifter), "int32") - shifter_bits
    magnitude = T.if_then_else(size < T.float32(smallest_normal), subnormal, normal)
    sign = T.bitwise_and(T.shift_right(bits, 31), 1 << _sign_bit(mantissa))
    return T.if_then_else(T.isnan(x), nan, T.bitwise_or(magnitude, sign))


def _sign_bit(mantissa: int) -> int:
    return 7 if mantissa == 3 else 3


def _value(code: Expr, mantissa: int, bias: int) -> Expr:
    """The float32 of a sign and magnitude code (int32). No NaN handling."""
    sign_bit = _sign_bit(mantissa)
    magnitude = T.bitwise_and(code, (1 << sign_bit) - 1)
    normal = T.shift_left(magnitude, 23 - mantissa) + ((127 - bias) << 23)
    # not by a shift into float32's subnormals: a unit that flushes them would lose the value
    subnormal = T.reinterpret(T.cast(magnitude, "float32") * T.float32(2.0 ** (1 - bias - mantissa)), "int32")
    size = T.if_then_else(magnitude < (1 << mantissa), subnormal, normal)
    sign = T.shift_left(T.shift_right(code, sign_bit), 31)
    return T.reinterpret(T.bitwise_or(size, sign), "float32")


def e4m3_from_f32_bits(x: Expr) -> Expr:
    """The e4m3 code of a float32 by integer code: int32, 0 .. 255."""
    return _code(x, 3, 7, E4M3_MAX, E4M3_NAN)


def e4m3_bits_to_f32(code: Expr) -> Expr:
    """The float32 of an e4m3 code (int32, 0 .. 255; a uint8 is widened) by integer code."""
    code = T.cast(code, "int32") if str(code.dtype) != "int32" else code
    is_nan = T.bitwise_and(code, 0x7F) == E4M3_NAN
    return T.if_then_else(is_nan, T.reinterpret(T.int32(0x7FC00000), "float32"), _value(code, 3, 7))


def e4m3_from_f32(x: Expr) -> Expr:
    """A float32 as float8_e4m3fn: nearest even, saturating at 448, NaN to 0x7F."""
    if capability.has("e4m3"):
        return T.cast(x, E4M3)
    return T.reinterpret(T.cast(e4m3_from_f32_bits(x), "uint8"), E4M3)


def e4m3_to_f32(x: Expr) -> Expr:
    """A float8_e4m3fn as float32, exactly."""
    if capability.has("e4m3"):
        return T.cast(x, "float32")
    return e4m3_bits_to_f32(T.cast(T.reinterpret(x, "uint8"), "int32"))


def e2m1_from_f32(x: Expr) -> Expr:
    """The e2m1 code of a float32: int32, 0 .. 15; nearest even, saturating at 6, NaN to +6."""
    return _code(x, 1, 1, E2M1_MAX, E2M1_NAN)


def e2m1_to_f32(code: Expr) -> Expr:
    """The float32 of an e2m1 code (int32, 0 .. 15), exactly."""
    return _value(code, 1, 1)


def pack_pair(low: Expr, high: Expr) -> Expr:
    """Two e2m1 codes (of one integer type) in one int8, the first in the low nibble."""
    return T.cast(T.bitwise_or(low, T.shift_left(high, 4)), "int8")


def power_of_two_above(x: Expr) -> Expr:
    """The biased exponent (int32) of the smallest power of two that is not below ``x``, a positive normal float32.

    Taken from the bits of ``x`` itself; infinity gives 255.
    """
    return T.shift_right(T.reinterpret(x, "int32") - 1, 23) + 1


def power_of_two(exponent: Expr) -> Expr:
    """The float32 of a biased exponent (int32, 0 .. 255; 0 gives zero, 255 infinity)."""
    return T.reinterpret(T.shift_left(exponent, 23), "float32")
