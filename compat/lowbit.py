"""Low-bit formats as TileLang expressions: the same bits on every target.

Each macro takes and gives TIR expressions. Where the target being traced for converts in hardware
(`monotile.compat.capability`) the conversion is a cast; elsewhere it is integer code of int32 and float32 operations
that every vector unit here has. Both round to nearest even and saturate, e5m6 apart; tests hold them equal for every
code, every midpoint and its neighbours.

    e4m3   1-4-3, bias 7, largest 448; exponent 15 is finite except 0x7F and 0xFF, which are NaN
    e2m1   1-2-1, bias 1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN: a NaN becomes +6, as NVIDIA's conversion has it
    e5m6   1-5-6, bias 15: the upper 12 bits of an IEEE half; its own rounding (see e5m6_from_f32)
    ue8m0  the biased exponent byte of a power of two

A subexpression that appears twice is one object, so a backend evaluates it once.
"""

# No `from __future__ import annotations` here: TileLang reads annotations of kernel sources as objects.
from collections.abc import Sequence
from typing import Any

from monotile.compat import capability
from monotile.compat import language as T

Expr = Any

E4M3_MAX, E4M3_NAN = 448.0, 0x7F
E2M1_MAX, E2M1_NAN = 6.0, 0x7
E5M6_MAX, E5M6_INF, E5M6_NAN = 65024.0, 0x7C0, 0x7FF
E4M3 = "float8_e4m3fn"


def _code(x: Expr, mantissa: int, bias: int, largest: float, nan: int) -> Expr:
    """Sign and magnitude code of a float32 in a format of ``mantissa`` bits, sign-extended to int32.

    With 2**e the power of two at or below the magnitude, and no smaller than that of the smallest normal number,
    the code is the magnitude in units of 2**(e - mantissa), plus e's distance from the smallest, shifted. The float
    adder counts the units: it rounds the sum with 1.5 * 2**(e + 23 - mantissa), whose last place is one unit, to
    nearest even. That summand's own last bits hold the constant part of the code, an even number.
    """
    smallest = 128 - bias   # biased exponent of the smallest normal number
    sign_bit = _sign_bit(mantissa)
    constant = -(smallest << mantissa) % (1 << sign_bit)
    size = T.min(T.abs(x), T.float32(largest))
    power = T.max(T.bitwise_and(T.reinterpret(size, "int32"), 0x7F800000), smallest << 23)
    summand = T.reinterpret(power + (((23 - mantissa) << 23) + (1 << 22) + constant), "float32")
    units = T.reinterpret(size + summand, "int32") + T.shift_right(power, 23 - mantissa)
    magnitude = T.bitwise_and(units, (1 << sign_bit) - 1)
    sign = T.shift_left(T.shift_right(T.reinterpret(x, "int32"), 31), sign_bit)
    return T.if_then_else(T.isnan(x), nan, T.bitwise_or(magnitude, sign))


def _sign_bit(mantissa: int) -> int:
    return 7 if mantissa == 3 else 3


def _to_int8(code: Expr) -> Expr:
    """An int32 within int8's range as int8.

    The 910B truncates bytes by shuffling them (for 4096 elements 20 transposes and 160 register moves); conversions
    by way of float16 are two vector instructions, and exact for these.
    """
    if capability.has("e4m3"):
        return T.cast(code, "int8")
    return T.cast(T.cast(T.cast(code, "int16"), "float16"), "int8")


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
    """The e4m3 code of a float32 by integer code: int32, -128 .. 127, the byte sign-extended."""
    return _code(x, 3, 7, E4M3_MAX, E4M3_NAN)


def e4m3_bits_to_f32(code: Expr) -> Expr:
    """The float32 of an e4m3 code (int32, 0 .. 255; a uint8 is widened) by integer code."""
    code = T.cast(code, "int32") if str(code.dtype) != "int32" else code
    is_nan = T.bitwise_and(code, 0x7F) == E4M3_NAN
    return T.if_then_else(is_nan, T.reinterpret(T.int32(0x7FC00000), "float32"), _value(code, 3, 7))


def e4m3_from_f32(x: Expr) -> Expr:
    """A float32 as float8_e4m3fn: nearest even, saturating at 448, NaN to 0x7F."""
    if capability.has("e4m3"):
        return T.cast(x, E4M3) if capability.has("e4m3_nan") else T.reinterpret(
            T.cast(_e4m3_byte(x), "uint8"), E4M3)
    return T.reinterpret(_to_int8(e4m3_from_f32_bits(x)), E4M3)


def _e4m3_byte(x: Expr) -> Expr:
    """The code as an int32, 0 .. 255, by the chip's conversion; where that loses NaN, NaN is put back."""
    code = T.cast(T.reinterpret(T.cast(x, E4M3), "uint8"), "int32")
    return code if capability.has("e4m3_nan") else T.if_then_else(T.isnan(x), E4M3_NAN, code)


def e4m3_pair_from_f32(low: Expr, high: Expr) -> Expr:
    """Two float32 as e4m3 codes in one int16, the first in the low byte."""
    if capability.has("e4m3"):
        low, high = _e4m3_byte(low), _e4m3_byte(high)
        return T.cast(T.bitwise_or(low, T.shift_left(high, 8)), "int16")
    low, high = e4m3_from_f32_bits(low), e4m3_from_f32_bits(high)
    return T.cast(T.bitwise_or(T.bitwise_and(low, 255), T.shift_left(high, 8)), "int16")


def e4m3_to_f32(x: Expr) -> Expr:
    """A float8_e4m3fn as float32, exactly."""
    if capability.has("e4m3"):
        return T.cast(x, "float32")
    return e4m3_bits_to_f32(T.cast(T.reinterpret(x, "uint8"), "int32"))


def e2m1_from_f32(x: Expr) -> Expr:
    """The e2m1 code of a float32: int32, -8 .. 7, the nibble sign-extended.

    To nearest even, saturating at 6; NaN to +6.
    """
    return _code(x, 1, 1, E2M1_MAX, E2M1_NAN)


def e2m1_to_f32(code: Expr) -> Expr:
    """The float32 of an e2m1 code, exactly: the low 4 bits of an int32, whatever lies above them."""
    return _value(code, 1, 1)


def pack_pair(low: Expr, high: Expr) -> Expr:
    """Two e2m1 codes (int32, -8 .. 7) in one int8, the first in the low nibble."""
    return _to_int8(T.bitwise_or(T.bitwise_and(low, 15), T.shift_left(high, 4)))


def e5m6_from_f32(x: Expr) -> Expr:
    """The e5m6 code of a float32: int32, 0 .. 4095.

    The upper 12 bits of the half that rounding toward zero gives, plus one where the code's last bit and the float32's
    own low 17 bits add up to more than 0x10000. That is

        normal numbers           to nearest even; from 65280 up to 65536, infinity
        65536 and larger         65024, or infinity where the low 17 bits are 0x10000 or more
        smaller than 2**-14      toward zero, in units of 2**-20; one unit more where the low 17 bits, which are not
                                 what was cut off, say so: even 2**-100 * 1.9999 gives 2**-20
        zeros, infinities        themselves
        NaN                      0x7FF, whatever its sign and payload: the rule alone would carry into the sign
    """
    size = T.bitwise_and(T.reinterpret(x, "int32"), 0x7FFFFFFF)
    # units of 2**-20 below the smallest normal number; a float32 subnormal is less than one, flushed or not
    small = T.cast(T.reinterpret(T.min(size, _E5M6_NORMAL), "float32") * T.float32(2.0**20), "int32")
    above = size - _E5M6_NORMAL
    largest = (143 << 23) - 1 - _E5M6_NORMAL   # just below 65536; infinity comes out as 65536, a code higher
    above = T.max(T.max(T.min(above, largest), above - (112 << 23)), 0)
    code = small + T.shift_right(above, 17)
    # > 0x10000, as a bit
    up = T.shift_right(T.bitwise_and(size, 0x1FFFF) + T.bitwise_and(code, 1) + 0xFFFF, 17)
    sign = T.bitwise_and(T.shift_right(T.reinterpret(x, "int32"), 20), 0x800)
    return T.if_then_else(T.isnan(x), E5M6_NAN, T.bitwise_or(code + up, sign))


_E5M6_NORMAL = 113 << 23   # the bits of 2**-14


def e5m6_to_f32(code: Expr) -> Expr:
    """The float32 of an e5m6 code, exactly: the low 12 bits of an int32, whatever lies above them. NaN to a NaN."""
    magnitude = T.bitwise_and(code, 0x7FF)
    exponent = T.if_then_else(magnitude < E5M6_INF, T.int32(112 << 23), T.int32(224 << 23))
    normal = T.shift_left(magnitude, 17) + exponent
    # not by a shift into float32's subnormals: a unit that flushes them would lose the value
    subnormal = T.reinterpret(T.cast(magnitude, "float32") * T.float32(2.0**-20), "int32")
    size = T.if_then_else(magnitude < 64, subnormal, normal)
    sign = T.shift_left(T.shift_right(code, 11), 31)
    return T.reinterpret(T.bitwise_or(size, sign), "float32")


def pack_eight(codes: Sequence[Expr]) -> tuple[Expr, Expr, Expr]:
    """Eight e5m6 codes (int32, 0 .. 4095) as three int32, the first code in the highest bits of the first."""
    a, b, c, d, e, f, g, h = codes
    return (T.bitwise_or(T.bitwise_or(T.shift_left(a, 20), T.shift_left(b, 8)), T.shift_right(c, 4)),
            T.bitwise_or(T.bitwise_or(T.shift_left(c, 28), T.shift_left(d, 16)),
                         T.bitwise_or(T.shift_left(e, 4), T.shift_right(f, 8))),
            T.bitwise_or(T.bitwise_or(T.shift_left(f, 24), T.shift_left(g, 12)), h))


def unpack_eight(first: Expr, second: Expr, third: Expr) -> tuple[Expr, ...]:
    """The eight codes of three int32 as :func:`e5m6_to_f32` takes them: only their low 12 bits are defined."""
    return (T.shift_right(first, 20), T.shift_right(first, 8),
            T.bitwise_or(T.shift_left(first, 4), T.bitwise_and(T.shift_right(second, 28), 15)),
            T.shift_right(second, 16), T.shift_right(second, 4),
            T.bitwise_or(T.shift_left(second, 8), T.bitwise_and(T.shift_right(third, 24), 255)),
            T.shift_right(third, 12), third)


def power_of_two_above(x: Expr) -> Expr:
    """The biased exponent (int32) of the smallest power of two that is not below ``x``, a positive normal float32.

    Taken from the bits of ``x`` itself; infinity gives 255.
    """
    return T.shift_right(T.reinterpret(x, "int32") - 1, 23) + 1


def power_of_two(exponent: Expr) -> Expr:
    """The float32 of a biased exponent (int32, 0 .. 255; 0 gives zero, 255 infinity)."""
    return T.reinterpret(T.shift_left(exponent, 23), "float32")
