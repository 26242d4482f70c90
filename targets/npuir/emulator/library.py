"""NumPy bodies of the vendor's library calls (the entries of meta_op.aiv.c220.bc), and what each call
touches.

`resolve` turns a name such as `vadd_2d_float` and the operands it is called with into a `Routine`: which pipe
executes it, which operands it reads and writes, which are scratch, and a function over NumPy views. Views
have the element's dtype; bf16 is uint16, i1 is bytes of eight elements, least significant bit first. Operands
after those that a body uses are ignored: the IR passes more than some entries take.

The order of operations in a body (summation trees above all), what it refuses, and what it touches beside its
operands (`reach`) are the vendor's: found by running the vendor's bitcode (vendor.py), kept by comparing the
two in tests/emulator/test_vendor_bodies.py, which also lists what could not be compared. What single
instructions do is Huawei's documentation of AscendC; where that is silent, these are assumptions:
- division, square root, exp, ln, reciprocal and reciprocal square root are rounded as NumPy rounds them;
- max and min of floats return NaN if either operand is NaN;
- integers wrap (CTRL[53] = 0); casts to integers saturate and turn NaN into 0 (CTRL[59] = 0); f16 and bf16
  overflow to infinity (CTRL[48] = 1, which is the default mode of the 910B family);
- a NaN cast to bf16 becomes 0x7fc0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from monotile.compat.errors import MonotileError


class UnknownRoutine(MonotileError, RuntimeError):
    """The final IR calls a library routine that the emulator has no body for."""


class RoutineError(Exception):
    """A body met operands that the routine cannot handle; the runtime reports it as a fault."""


@dataclass(frozen=True)
class Operand:
    """What a call passes: a memref (`rank` and `space` set) or a scalar of type `element`."""

    element: str
    rank: int | None = None
    space: str = ""

    @property
    def is_view(self) -> bool:
        return self.rank is not None


Body = Callable[..., None]
Shape = tuple[int, ...]
# (shape, byte strides, item size) of an operand -> shape and byte strides, from the same start, of what a
# body overwrites
Reach = Callable[[Shape, Shape, int], tuple[Shape, Shape]]


@dataclass(frozen=True)
class Routine:
    """A library routine as called: operand positions by role, and the body.

    `reach`: operands beyond whose end the vendor's body writes, and how far; what lies there is lost.
    `columns`: operands with a last axis of 1 whose rows may follow each other without a gap. `padding`:
    position of the padding mode of a load, which is followed by the value and the number of elements to pad
    on the left.
    """

    name: str
    pipe: str  # "V", "MTE2" or "MTE3"
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    temporaries: tuple[int, ...]
    body: Body
    atomic: int | None = None  # position of the atomic kind, for stores
    padding: int | None = None
    reach: tuple[tuple[int, Reach], ...] = ()
    columns: tuple[int, ...] = ()


_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i1": np.dtype(np.uint8),
    "ui64": np.dtype(np.uint64),
    "ui32": np.dtype(np.uint32),
    "ui16": np.dtype(np.uint16),
    "ui8": np.dtype(np.uint8),
    "f8E4M3FN": np.dtype(np.uint8),
    "f8E5M2": np.dtype(np.uint8),
}


def dtype(element: str) -> np.dtype[Any]:
    """The NumPy dtype that holds an MLIR element type. Errors: UnknownRoutine."""
    try:
        return _DTYPES[element]
    except KeyError:
        raise UnknownRoutine(f"memrefs of {element} are not known to the emulator") from None


def itemsize(element: str) -> int:
    return int(dtype(element).itemsize)


def resolve(name: str, operands: tuple[Operand, ...]) -> Routine:
    """The routine for a call. Errors: UnknownRoutine naming it, if no family has it or its operands do not
    fit.
    """
    for pattern, build in _FAMILIES:
        match = pattern.fullmatch(name)
        if match:
            try:
                plan = build(match, operands)
            except IndexError:
                plan = None
            if plan is None:
                break
            named = (*plan.reads, *plan.writes)
            if any(k >= len(operands) for k in named):
                break
            views = [k for k, o in enumerate(operands) if o.is_view]
            temporaries = tuple(k for k in views if k not in named)
            return Routine(
                name, plan.pipe, plan.reads, plan.writes, temporaries, plan.body, plan.atomic, plan.padding,
                plan.reach, plan.columns,
            )  # fmt: skip
    shown = ", ".join(f"{o.element}[{o.rank}d]" if o.is_view else o.element for o in operands)
    raise UnknownRoutine(f"library call {name}({shown}) has no body in the emulator")


# ---------------------------------------------------------------------------------------------- families


@dataclass(frozen=True)
class _Plan:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    body: Body
    pipe: str = "V"
    atomic: int | None = None
    padding: int | None = None
    reach: tuple[tuple[int, Reach], ...] = ()
    columns: tuple[int, ...] = ()


_Builder = Callable[[re.Match[str], tuple[Operand, ...]], "_Plan | None"]
_FAMILIES: list[tuple[re.Pattern[str], _Builder]] = []
_TYPE = r"(?:bfloat16_t|float|half|bool|u?int(?:8|16|32|64)_t)"


def _family(pattern: str) -> Callable[[_Builder], _Builder]:
    """Register a builder for the names that `pattern` matches; `{T}` is a C type, `{N}` a rank."""
    full = re.compile(pattern.replace("{T}", _TYPE).replace("{N}", r"[123]d"))

    def register(builder: _Builder) -> _Builder:
        _FAMILIES.append((full, builder))
        return builder

    return register


BLOCK = 32  # bytes: what UB is addressed in
_PAD_VALUE = 2
_ATOMIC: dict[int, Callable[..., Any]] = {1: np.add, 2: np.maximum, 3: np.minimum}


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _bits(packed: np.ndarray, count: int) -> np.ndarray:
    """The first `count` bits along the last axis, as bools."""
    return np.unpackbits(packed, axis=-1, count=count, bitorder="little").view(np.bool_)


def _pack(values: np.ndarray) -> np.ndarray:
    return np.packbits(values, axis=-1, bitorder="little")


def _raw(array: np.ndarray) -> np.ndarray:
    """The same bits as unsigned integers, for bitwise operations on any element type."""
    return array if array.dtype.kind in "iu" else array.view(np.dtype(f"u{array.dtype.itemsize}"))


def bf16_to_f32(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


# ---- moving data


def around(view: np.ndarray, shape: Shape, strides: Shape, before: int = 0) -> np.ndarray:
    """The bytes of a UB view's memory from `before` bytes ahead of its start, as another view of its dtype.

    Errors: RoutineError if that reaches out of UB.
    """
    memory = view.base
    assert memory is not None
    offset = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0] - before
    try:
        return np.ndarray(shape, view.dtype, memory, offset, strides)
    except ValueError:
        raise RoutineError(f"{shape} elements from byte {offset} on reach out of UB") from None


def padding(target: np.ndarray, left: int) -> list[np.ndarray]:
    """What a padded load fills beside `target`: `left` elements ahead of each row, and each row's last
    block.
    """
    size = target.dtype.itemsize
    row = target.shape[-1]
    right = -(left + row) % (BLOCK // size)
    outer, outer_strides = target.shape[:-1], target.strides[:-1]
    parts = []
    if left:
        parts.append(around(target, (*outer, left), (*outer_strides, size), left * size))
    if right:
        parts.append(around(target, (*outer, right), (*outer_strides, size), -row * size))
    return parts


@_family(r"load_gm_to_ubuf_{N}_{T}")
def _load(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    convert = _scalar(operands[1].element)

    def body(source: Any, target: Any, mode: int = 0, value: Any = 0, left: int = 0, *_: Any) -> None:
        if source.shape != target.shape:
            raise RoutineError(f"load of {source.shape} into {target.shape}")
        target[...] = source
        if mode or left:
            if (
                mode != _PAD_VALUE
                or target.dtype.itemsize == 8
                or target.strides[-1] != target.dtype.itemsize
            ):
                raise RoutineError(f"load with padding mode {mode}, {left} on the left, of {target.dtype}")
            for part in padding(target, left):
                part[...] = convert(value)

    return _Plan((0,), (1,), body, "MTE2", padding=2)


@_family(r"store_ubuf_to_gm_{N}_{T}")
def _store(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    element = operands[0].element

    def body(source: Any, target: Any, atomic: int = 0, *_: Any) -> None:
        if source.shape != target.shape:
            raise RoutineError(f"store of {source.shape} into {target.shape}")
        if not atomic:
            target[...] = source
        elif atomic in _ATOMIC and element in ("f32", "f16", "bf16", "i32", "i16", "i8"):
            combine = _ATOMIC[atomic]
            if element == "bf16":
                sums = combine(bf16_to_f32(target), bf16_to_f32(source))
                target[...] = round_to_bf16(sums, 0)
            else:
                combine(target, source, out=target)
        else:
            raise RoutineError(f"store of {element} with atomic kind {atomic}")

    return _Plan((0,), (1,), body, "MTE3", atomic=2)


def _copy_body(source: Any, target: Any, *_: Any) -> None:
    target[...] = source


@_family(r"copy_ubuf_to_ubuf_{N}_{T}")
def _copy(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    return _Plan((0,), (1,), _copy_body)


@_family(r"broadcast_scalar_({T})_to_[12]d")
def _broadcast_scalar(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    convert = _scalar(operands[1].element)

    def body(value: Any, target: Any, *_: Any) -> None:
        target[...] = convert(value)

    if match[1] == "bool":

        def fill_bits(value: Any, target: Any, *_: Any) -> None:
            target[...] = 0xFF if value else 0

        return _Plan((), (1,), fill_bits)
    return _Plan((), (1,), body)


def _blocks_of_rows(shape: Shape, strides: Shape, size: int) -> tuple[Shape, Shape]:
    """An unaligned broadcast along the last axis starts by spreading eight rows at a time to a block each."""
    end = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + size
    return (max(end, _up(shape[0], 8) * BLOCK) // size,), (size,)


@_family(r"broadcast_(1d|(?:first|middle|last)_axis)(?:_(align|unalign|unknown_align)_[23]d)?_{T}")
def _broadcast_axis(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan | None:
    if operands[0].element == "i1" or (match[1] == "1d" and itemsize(operands[0].element) == 1):
        return None
    if match[1] != "last_axis":
        return _Plan((0,), (1,), _copy_body)
    reach = () if match[2] == "align" else ((1, _blocks_of_rows),)
    return _Plan((0,), (1,), _copy_body, reach=reach, columns=(0,))


# ---- elementwise


def _reciprocal_root(a: Any, out: Any) -> None:
    np.sqrt(a, out=out)
    np.divide(1, out, out=out)


def _relu(a: Any, out: Any) -> None:
    np.maximum(a, 0, out=out)


_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "shl": np.left_shift,
    "shr": np.right_shift,
}
_BITWISE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "exp": np.exp,
    "ln": np.log,
    "sqrt": np.sqrt,
    "rsqrt": _reciprocal_root,
    "rec": lambda a, out: np.divide(1, a, out=out),
    "relu": _relu,
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _scalar(element: str) -> Callable[[Any], Any]:
    """Convert a scalar operand (a Python int or float) to the element's NumPy scalar."""
    kind = dtype(element)
    if kind.kind == "u":
        mask = (1 << (8 * kind.itemsize)) - 1
        return lambda value: kind.type(int(value) & mask)
    return lambda value: kind.type(value)


@_family(r"v(add|sub|mul|div|max|min)_{N}_{T}")
def _binary(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compute = _BINARY[match[1]]

    def body(a: Any, b: Any, out: Any, *_: Any) -> None:
        compute(a, b, out=out)

    return _Plan((0, 1), (2,), body)


@_family(r"v(add|sub|mul|div|max|min|shl|shr)s?_vs_{N}_{T}")
def _vector_scalar(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compute = _BINARY[match[1]]
    convert = _scalar(operands[0].element)

    def body(a: Any, b: Any, out: Any, *_: Any) -> None:
        compute(a, convert(b), out=out)

    return _Plan((0,), (2,), body)


@_family(r"v(sub|div)_sv_{N}_{T}")
def _scalar_vector(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compute = _BINARY[match[1]]
    convert = _scalar(operands[1].element)

    def body(a: Any, b: Any, out: Any, *_: Any) -> None:
        compute(convert(a), b, out=out)

    return _Plan((1,), (2,), body)


@_family(r"v(and|or|xor)_{N}_{T}")
def _bitwise(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compute = _BITWISE[match[1]]

    def body(a: Any, b: Any, out: Any, *_: Any) -> None:
        compute(_raw(a), _raw(b), out=_raw(out))

    return _Plan((0, 1), (2,), body)


@_family(r"vnot_{N}_{T}")
def _not(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(a: Any, out: Any, *_: Any) -> None:
        np.bitwise_not(_raw(a), out=_raw(out))

    return _Plan((0,), (1,), body)


@_family(r"v(abs|exp|ln|sqrt|rsqrt|rec|relu)_{N}_{T}")
def _unary(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compute = _UNARY[match[1]]

    def body(a: Any, out: Any, *_: Any) -> None:
        compute(a, out=out)

    return _Plan((0,), (1,), body)


@_family(r"vcmp_(eq|ne|lt|le|gt|ge)_1d_{T}")
def _compare(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compare = _COMPARE[match[1]]

    def body(a: Any, b: Any, out: Any, *_: Any) -> None:
        out[...] = _pack(compare(a, b))

    return _Plan((0, 1), (2,), body)


@_family(r"vcmps_(eq|ne|lt|le|gt|ge)_1d_{T}")
def _compare_scalar(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    compare = _COMPARE[match[1]]
    convert = _scalar(operands[0].element)

    def body(a: Any, b: Any, out: Any, *_: Any) -> None:
        out[...] = _pack(compare(a, convert(b)))

    return _Plan((0,), (2,), body)


@_family(r"vsel_(vv|vs|sv|ss)_1d_(?:bool_)?{T}")
def _select(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan | None:
    if operands[0].element != "i1":
        return None
    forms = match[1]
    convert = _scalar(operands[3].element)
    reads = (0, *(k + 1 for k in (0, 1) if forms[k] == "v"))

    def body(condition: Any, x: Any, y: Any, out: Any, *_: Any) -> None:
        chosen = _bits(condition, out.shape[-1])
        out[...] = np.where(
            chosen, x if forms[0] == "v" else convert(x), y if forms[1] == "v" else convert(y)
        )

    return _Plan(reads, (3,), body)


# ---- casts


def _away(values: Any) -> Any:
    """To the nearest whole number, ties away from zero."""
    whole = np.trunc(values)
    return np.copysign(np.abs(whole) + (np.abs(values - whole) >= 0.5), values)


_ROUND: dict[int, Callable[[Any], Any]] = {
    0: np.rint,
    1: _away,
    2: np.floor,
    3: np.ceil,
    4: np.trunc,
}


def round_to_bf16(values: np.ndarray, mode: int) -> np.ndarray:
    """f32 to bf16 bits. mode 0 ties to even, 1 ties away from zero, 2 down, 3 up, 4 towards zero."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if mode == 0:
        rounded = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    elif mode == 1:
        rounded = bits + np.uint32(0x8000)
    elif mode == 4:
        rounded = bits
    else:
        negative = (bits >> np.uint32(31)).astype(np.bool_)
        away = negative if mode == 2 else ~negative
        rounded = bits + np.where(away, np.uint32(0xFFFF), np.uint32(0))
    result = (rounded >> np.uint32(16)).astype(np.uint16)
    result[np.isnan(values)] = 0x7FC0
    return result


def _cast_body(source: str, target: str, overflow: bool) -> Body:
    to = dtype(target)
    from_float = source in ("f32", "f16", "bf16")

    def widen(values: np.ndarray) -> np.ndarray:
        return bf16_to_f32(values) if source == "bf16" else values

    def float_to_integer(values: Any, out: Any, mode: int = 0, *_: Any) -> None:
        wide = _ROUND[mode](widen(values).astype(np.float64))
        limits = np.iinfo(to)
        wide[np.isnan(wide)] = 0
        low, high = wide < limits.min, wide > limits.max if to.itemsize < 8 else wide >= 2.0**63
        wide[low | high] = 0
        whole = wide.astype(np.int64)
        whole[low], whole[high] = limits.min, limits.max
        out[...] = whole.astype(to)

    def float_to_float(values: Any, out: Any, mode: int = 0, *_: Any) -> None:
        wide = widen(values)
        if target == "bf16":
            out[...] = round_to_bf16(np.asarray(wide, np.float32), mode)
        elif source == target:
            out[...] = _ROUND[mode](wide)  # rounds to a whole number
        else:
            out[...] = round_to_float(wide, to.type, mode)

    def integer_to_float(values: Any, out: Any, mode: int = 0, *_: Any) -> None:
        if target == "bf16":
            out[...] = round_to_bf16(values.astype(np.float32), mode)
        else:
            out[...] = round_to_float(values, to.type, mode)

    def integer_to_integer(values: Any, out: Any, *_: Any) -> None:
        limits = np.iinfo(to)
        if np.iinfo(dtype(source)).bits > limits.bits:
            values = np.clip(values, limits.min, limits.max)
        out[...] = values.astype(to)

    def truncate(values: Any, out: Any, *_: Any) -> None:
        out[...] = values.astype(to)

    # Only the casts to 8 bits shuffle bytes; the others convert, and that saturates.
    if overflow and to.itemsize == 1:
        return truncate
    if from_float:
        return float_to_float if target in ("f32", "f16", "bf16") else float_to_integer
    return integer_to_float if target in ("f32", "f16", "bf16") else integer_to_integer


def round_to_float(values: np.ndarray, to: Any, mode: int) -> np.ndarray:
    """Integers or floats to f32 or f16; modes as in `round_to_bf16`.

    Errors: RoutineError for a 64-bit source beyond 2**53 in a mode other than 0.
    """
    nearest = values.astype(to)
    if mode == 0:
        return nearest
    exact = values.astype(np.float64)
    if values.dtype.itemsize == 8 and values.dtype.kind in "iu" and np.any(np.abs(exact) > 2.0**53):
        raise RoutineError(f"cast of 64-bit integers beyond 2**53 with rounding mode {mode}")
    back = nearest.astype(np.float64)
    down, up = to(-np.inf), to(np.inf)
    if mode == 1:
        outward = np.nextafter(nearest, np.where(exact < 0, down, up).astype(to))
        tie = np.abs(outward.astype(np.float64) - exact) == np.abs(back - exact)
        inward = np.abs(back) < np.abs(exact)
        return np.where(tie & inward, outward, nearest)
    floor = np.where(back > exact, np.nextafter(nearest, down), nearest)
    ceiling = np.where(back < exact, np.nextafter(nearest, up), nearest)
    if mode == 2:
        return floor
    if mode == 3:
        return ceiling
    return np.where(exact < 0, ceiling, floor)


def _bytes_shuffled(shape: Shape, strides: Shape, size: int) -> tuple[Shape, Shape]:
    """A truncating cast to 8 bits transposes 32 rows of 32 bytes at a time, and writes them all back."""
    if len(shape) == 1:
        rows, row = (-(-shape[0] // BLOCK), BLOCK) if shape[0] > BLOCK else (1, BLOCK)
        return (_up(rows, BLOCK), row), (BLOCK, 1)
    return (_up(shape[0], BLOCK), _up(shape[1], BLOCK)), strides


@_family(r"vcast_({T})_to_{T}_[12]d_with_(mode|overflow|temp)")
def _cast(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan | None:
    source, target = operands[0].element, operands[1].element
    if match[2] == "temp":
        if source != "i1":
            return None
        one = round_to_bf16(np.ones(1, np.float32), 0)[0] if target == "bf16" else dtype(target).type(1)
        zero = dtype(target).type(0)

        def from_bits(packed: Any, out: Any, *_: Any) -> None:
            out[...] = np.where(_bits(packed, out.shape[-1]), one, zero)

        return _Plan((0,), (1,), from_bits)
    cast = _cast_body(source, target, match[2] == "overflow")
    if match[2] == "mode":
        return _Plan((0,), (1,), cast)

    def with_temporary(values: Any, out: Any, temporary: Any, *rest: Any) -> None:
        cast(values, out, *rest)

    reach = ((1, _bytes_shuffled),) if itemsize(target) == 1 else ()
    return _Plan((0,), (1,), with_temporary, reach=reach)


# ---- reductions

_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
}


def _halve(values: np.ndarray, width: int, compute: Callable[..., Any]) -> np.ndarray:
    """Combine axis 0 down to `width` entries (a power of two) as the vendor's bodies do.

    The first power of two of entries is folded in half, the rest is added onto it in pieces, then it is
    halved again and again. Fewer than `width` entries come back as they are.
    """
    count = values.shape[0]
    if count <= width:
        return values
    power = 1 << (count.bit_length() - 1)
    if power == width:
        folded, rest = values[:power].copy(), values[power:]
    else:
        folded, rest = compute(values[: power // 2], values[power // 2 : power]), values[power:]
    size = folded.shape[0]
    for start in range(0, rest.shape[0], size):
        piece = rest[start : start + size]
        compute(piece, folded[: piece.shape[0]], out=folded[: piece.shape[0]])
    while size > width:
        size //= 2
        folded = compute(folded[:size], folded[size : 2 * size])
    return folded


def _neighbours(values: np.ndarray, compute: Callable[..., Any]) -> np.ndarray:
    """Combine axis 0 to one entry by a tree of neighbours, as one instruction does within a repeat."""
    while values.shape[0] > 1:
        even = values.shape[0] // 2 * 2
        paired = compute(values[0:even:2], values[1:even:2])
        values = np.concatenate([paired, values[even:]]) if even < values.shape[0] else paired
    return values


@_family(r"(?:enablevc_)?reduce_(sum|prod|max|min|andi|ori|xori)_(r|ar|ra|ra0a1)_{T}")
def _reduce(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan | None:
    compute = _REDUCE[match[1]]
    last = match[2] in ("r", "ar")
    if operands[0].element not in ("f32", "f16", "i32", "i16"):
        return None
    if last and match[1] == "prod" and operands[0].element in ("f32", "f16"):
        return None  # its order is not the sum's, and has not been worked out
    exact = match[1] not in ("sum", "prod") or operands[0].element not in ("f32", "f16")
    axis = 1 if match[2] == "ar" else 0

    def in_any_order(source: Any, out: Any, *_: Any) -> None:
        compute.reduce(source, axis=axis, keepdims=True, out=out)  # type: ignore[attr-defined]

    def last_axis(source: Any, out: Any, *_: Any) -> None:
        lanes = 256 // source.dtype.itemsize
        out[...] = _neighbours(_halve(source.T, lanes, compute), compute).T.reshape(out.shape)

    def first_axis(source: Any, out: Any, *_: Any) -> None:
        out[...] = _halve(source, 1, compute)

    def one_by_one(source: Any, out: Any, *_: Any) -> None:
        total = source[:1].copy()
        for row in source[1:]:
            compute(total, row, out=total)
        out[...] = total

    body = in_any_order if exact else last_axis if last else first_axis
    if match[2] == "ra0a1" and not exact:
        body = one_by_one
    return _Plan((0,), (1,), body, columns=(1,) if match[2] == "ar" else ())


@_family(r"reduce_(max|min)_with_index_(r|ar|ra)_float")
def _reduce_with_index(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    find = np.argmax if match[1] == "max" else np.argmin
    axis = {"r": 0, "ar": 1, "ra": 0}[match[2]]

    def body(source: Any, value: Any, index: Any, *_: Any) -> None:
        where = np.expand_dims(find(source, axis=axis), axis)
        value[...] = np.take_along_axis(source, where, axis)
        index[...] = where

    return _Plan((0,), (1, 2), body)


# ---- shape and order


def _transposed_blocks(shape: Shape, strides: Shape, size: int) -> tuple[Shape, Shape]:
    """A transpose writes whole pieces of 16 x 16 (16 bits), 32 x 32 (8 bits), 8 x 16 or 16 x 8 (32 bits)."""
    rows, row = {1: (32, 32), 2: (16, 16), 4: (8, 16) if _up(shape[1], 8) % 16 == 0 else (16, 8)}[size]
    step = (
        strides[0] if shape[0] > 1 else _up(shape[1] * size, BLOCK)
    )  # the stride of an axis of 1 is not read
    return (_up(shape[0], rows), _up(shape[1], row)), (step, size)


@_family(r"transpose_2d_with_last_axis_{T}")
def _transpose(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan | None:
    if itemsize(operands[0].element) == 8:
        return None

    def body(source: Any, target: Any, *_: Any) -> None:
        target[...] = source.T

    return _Plan((0,), (1,), body, reach=((1, _transposed_blocks),))


@_family(r"transpose_3d_with(out)?_last_axis_{T}")
def _transpose_3d(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan | None:
    outer = match[1] is not None
    if itemsize(operands[0].element) == 8 and not outer:
        return None

    def body(source: Any, target: Any, *_: Any) -> None:
        if not outer and (source.shape[0] % 32 or source.shape[2] % 32):
            raise RoutineError(
                f"3-D transpose of {source.shape}: what it overwrites beside its result is not known"
            )
        target[...] = source.transpose((1, 0, 2) if outer else (2, 1, 0))

    return _Plan((0,), (1,), body)


@_family(r"arange_([123])d_{T}")
def _arange(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(target: Any, start: int, *strides: int) -> None:
        values: Any = np.asarray(start, np.int64)
        for axis, extent in enumerate(target.shape):
            step = np.arange(extent, dtype=np.int64) * strides[axis]
            values = values + step.reshape(-1, *([1] * (target.ndim - 1 - axis)))
        target[...] = values.astype(target.dtype)

    return _Plan((), (0,), body)


@_family(r"gather_1d_{T}")
def _gather(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(source: Any, indices: Any, target: Any, *_: Any) -> None:
        low, high = (int(indices.min()), int(indices.max())) if indices.size else (0, 0)
        if low < 0 or high >= max(source.shape[0], 1):
            raise RoutineError(
                f"gather index {low if low < 0 else high} outside of {source.shape[0]} elements"
            )
        target[...] = source[indices]

    return _Plan((0, 1), (2,), body)


@_family(r"interleave_1d_{T}")
def _interleave(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(even: Any, odd: Any, target: Any, *_: Any) -> None:
        target[0::2] = even
        target[1::2] = odd

    return _Plan((0, 1), (2,), body)


@_family(r"deinterleave_channel_([01])_from_2_channels_1d_{T}")
def _deinterleave(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    channel = int(match[1])

    def body(source: Any, target: Any, *_: Any) -> None:
        target[...] = source[channel::2]

    return _Plan((0,), (1,), body)


@_family(r"cum(sum|prod)_ra_{T}")
def _cumulative(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    accumulate = np.add if match[1] == "sum" else np.multiply

    def body(source: Any, target: Any, *_: Any) -> None:
        accumulate.accumulate(source, axis=0, out=target)

    return _Plan((0,), (1,), body)


@_family(r"flip_1d_{T}")
def _flip(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(source: Any, target: Any, *_: Any) -> None:
        target[...] = source[::-1].copy()

    return _Plan((0,), (1,), body)


def _groups_of_32(shape: Shape, strides: Shape, size: int) -> tuple[Shape, Shape]:
    """Sorting pads its source, in place, and its results to whole groups of 32."""
    return (_up(shape[0], 32),), strides


@_family(r"sort_1d_{T}")
def _sort(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(source: Any, target: Any, temporary: Any, descending: Any, *_: Any) -> None:
        order = _sort_order(source, bool(descending))
        target[...] = source[order]

    return _Plan((0,), (1,), body, reach=((0, _groups_of_32), (1, _groups_of_32)))


@_family(r"sort_with_index_1d_{T}")
def _sort_with_index(match: re.Match[str], operands: tuple[Operand, ...]) -> _Plan:
    def body(source: Any, target: Any, index: Any, temporary: Any, descending: Any, *_: Any) -> None:
        order = _sort_order(source, bool(descending))
        target[...] = source[order]
        index[...] = order

    return _Plan((0,), (1, 2), body, reach=((0, _groups_of_32), (1, _groups_of_32), (2, _groups_of_32)))


def _sort_order(values: np.ndarray, descending: bool) -> np.ndarray:
    return np.argsort(-values if descending else values, kind="stable")
