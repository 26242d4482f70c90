"""Scalar arithmetic of the final IR, as the functions that translated code calls.

Representation: integers and indices are Python ints kept in their signed range, i1 is a bool (or 0 and 1),
f32 and f16 are Python floats whose value the type can hold, bf16 is its 16 bits as an int. A sum, product or
quotient of two f32 values computed in double and rounded once is the correctly rounded f32 result (53 bits
hold twice 24 and two more).
"""

from __future__ import annotations

import math
import struct

WIDTH = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}
FLOATS = ("f32", "f16", "bf16")
_PACK = {"f32": ("<f", "<I"), "f16": ("<e", "<H")}


def wrap(value: int, bits: int) -> int:
    """`value` modulo 2**bits, in the signed range."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def wrap32(value: int) -> int:
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def whole_bytes(bits: int) -> int:
    """Bits as bytes. Errors: ValueError if they are no whole number of bytes."""
    if bits % 8:
        raise ValueError(f"an i1 memref starts inside a byte, at bit {bits}")
    return bits >> 3


def divide(a: int, b: int) -> int:
    """Quotient rounded towards zero. Errors: ZeroDivisionError."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder(a: int, b: int) -> int:
    """a - divide(a, b) * b."""
    return a - divide(a, b) * b


def to_f32(value: float) -> float:
    """Round to f32; beyond its range, to infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def to_f16(value: float) -> float:
    """Round to f16; beyond its range, to infinity."""
    try:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def to_bf16(value: float) -> int:
    """The bits of the bf16 nearest to an f32 value, ties to even; NaN becomes 0x7fc0."""
    if value != value:
        return 0x7FC0
    bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def from_bf16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])


def bits_of(value: float, type_: str) -> int:
    """The bits of an f32 or f16 value as a signed integer."""
    as_float, as_int = _PACK[type_]
    return wrap(
        int(struct.unpack(as_int, struct.pack(as_float, value))[0]), WIDTH["i32" if type_ == "f32" else "i16"]
    )


def from_bits(bits: int, type_: str) -> float:
    as_float, as_int = _PACK[type_]
    width = 32 if type_ == "f32" else 16
    return float(struct.unpack(as_float, struct.pack(as_int, unsigned(bits, width)))[0])


def float_divide(a: float, b: float) -> float:
    """IEEE division: by zero gives a signed infinity, or NaN for 0/0 and NaN/0."""
    if b == 0.0:
        if a == 0.0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def maximum(a: float, b: float) -> float:
    """arith.maximumf: NaN if either is NaN, and -0 < +0."""
    if a != a or b != b:
        return math.nan
    if a == b == 0.0:
        return a if math.copysign(1.0, a) > 0 else b
    return a if a > b else b


def minimum(a: float, b: float) -> float:
    """arith.minimumf: NaN if either is NaN, and -0 < +0."""
    return -maximum(-a, -b)


def compare_floats(predicate: int, a: float, b: float) -> bool:
    """arith.cmpf by predicate: 1..6 ordered ==, >, >=, <, <=, !=, 7 ord, 8..13 unordered, 14 uno."""
    nan = a != a or b != b
    if predicate in (0, 15):
        return predicate == 15
    if predicate in (7, 14):
        return nan == (predicate == 14)
    if nan:
        return predicate > 7
    return (a == b, a > b, a >= b, a < b, a <= b, a != b)[(predicate - 1) % 7]


def float_to_int(value: float, bits: int) -> int:
    """Towards zero, saturating; NaN gives 0. (MLIR leaves both open; this is what the scalar unit is taken
    to do.)
    """
    if value != value:
        return 0
    limit = 1 << (bits - 1)
    if math.isinf(value):
        return limit - 1 if value > 0 else -limit
    return max(-limit, min(limit - 1, int(value)))


def literal(text: str, type_: str) -> int | float:
    """The value of an arith.constant: `1.5`, `0xFF800000`, `true`, `-3`."""
    if text in ("true", "false"):
        return int(text == "true")
    if type_ not in FLOATS:
        return int(text, 0)
    if text.lower().startswith("0x"):
        bits = int(text, 16)
        return bits if type_ == "bf16" else from_bits(bits, type_)
    value = float(text)
    return {"f32": to_f32, "f16": to_f16, "bf16": to_bf16}[type_](value)
