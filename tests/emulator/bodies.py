"""Run one library call twice, by the vendor's body and by ours, from the same bytes of memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monotile.targets.npuir.emulator import vendor
from monotile.targets.npuir.emulator.library import Operand, Routine, dtype, itemsize, resolve

GUARD = 4096  # bytes between operands: what a body writes there by mistake must show

_ELEMENT = {
    "float": "f32",
    "half": "f16",
    "bfloat16_t": "bf16",
    "int64_t": "i64",
    "int32_t": "i32",
    "int16_t": "i16",
    "int8_t": "i8",
    "uint64_t": "ui64",
    "uint32_t": "ui32",
    "uint16_t": "ui16",
    "uint8_t": "ui8",
    "bool": "i1",
}


def element_of(c_type: str) -> str:
    return _ELEMENT[c_type]


@dataclass
class View:
    """A memref operand: sizes and strides in elements; `values` fills it (flat, C order), None leaves random
    bytes.
    """

    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...] = ()
    values: np.ndarray | None = None
    space: str = "ub"
    shift: int = 0  # elements before the view in its allocation
    before: int = 0  # elements ahead of and after each row that a comparison includes
    after: int = 0
    offset: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        if not self.strides:
            steps = [1]
            for n in reversed(self.sizes[1:]):
                steps.insert(0, steps[0] * n)
            self.strides = tuple(steps)

    @property
    def bytes(self) -> int:
        if 0 in self.sizes:
            return 0
        last = (
            self.shift
            + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
            + 1
            + self.after
        )
        return (last + 7) // 8 if self.element == "i1" else last * itemsize(self.element)

    def of(self, memory: np.ndarray) -> np.ndarray:
        """The view our bodies get."""
        if self.element == "i1":
            *outer, last = self.sizes
            shape, strides = (*outer, (last + 7) // 8), (*(s // 8 for s in self.strides[:-1]), 1)
            return np.ndarray(shape, np.uint8, memory, self.offset, strides)
        size = itemsize(self.element)
        start = self.offset + self.shift * size
        return np.ndarray(
            self.sizes, dtype(self.element), memory, start, tuple(s * size for s in self.strides)
        )


@dataclass
class Outcome:
    """What the vendor's body left and what ours left, for each written operand; and bytes the vendor touched
    beside.
    """

    routine: Routine
    vendor: list[np.ndarray]
    ours: list[np.ndarray]
    strayed: list[int]
    trace: vendor.Trace

    def differences(self) -> list[str]:
        found = []
        for position, theirs, mine in zip(self.routine.writes, self.vendor, self.ours, strict=True):
            if not same(theirs, mine):
                wrong = ~equal(theirs, mine)
                first = tuple(int(i) for i in np.argwhere(wrong)[0])
                found.append(
                    f"operand {position}: {int(wrong.sum())} of {wrong.size} differ, first at {first}: "
                    f"vendor {theirs[first]!r}, ours {mine[first]!r}"
                )
        return found


def equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bitwise, except that all NaNs are one."""
    if a.dtype.kind == "f":
        bits = np.dtype(f"u{a.dtype.itemsize}")
        return (np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)) | (
            np.isnan(a) & np.isnan(b)
        )
    return a == b


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(equal(a, b).all())


def compare(entry: str, operands: Sequence[View | int | float], seed: int = 0) -> Outcome:
    """Errors: vendor.VendorBodyFailed; UnknownRoutine."""
    machine = vendor.machine()
    rng = np.random.default_rng(seed)
    machine.ub[:] = rng.integers(0, 256, machine.ub.size, dtype=np.uint8)
    signature = machine.signature(entry)
    ub_at, gm_at = GUARD, GUARD
    gm_size = sum(o.bytes + 6 * GUARD for o in operands if isinstance(o, View) and o.space == "gm") + GUARD
    gm = rng.integers(0, 256, gm_size, dtype=np.uint8)
    for operand in operands:
        if not isinstance(operand, View):
            continue
        if operand.space == "ub":
            operand.offset = ub_at
            ub_at += -(-operand.bytes // 32) * 32 + GUARD
        else:
            operand.offset = gm_at + int(rng.integers(0, 32)) * itemsize(operand.element)
            gm_at = operand.offset + operand.bytes + GUARD
    assert ub_at < machine.ub.size, f"{entry}: operands need {ub_at} bytes of UB"
    for operand in operands:
        if isinstance(operand, View) and operand.values is not None:
            memory = machine.ub if operand.space == "ub" else gm
            operand.of(memory)[...] = operand.values.reshape(operand.of(memory).shape)
    ours_ub, ours_gm = machine.ub.copy(), gm.copy()
    before = machine.ub.copy()

    arguments: list[Any] = []
    described: list[Operand] = []
    for operand, (type_, _) in zip(operands, signature, strict=False):
        if isinstance(operand, View):
            base = machine.base if operand.space == "ub" else int(gm.ctypes.data)
            start = operand.offset + (
                operand.shift * itemsize(operand.element) if operand.element != "i1" else 0
            )
            arguments.append(machine.memref(base + start, operand.sizes, operand.strides))
            described.append(Operand(operand.element, len(operand.sizes), operand.space))
        else:
            described.append(Operand(_SCALARS[type_]))
            arguments.append(_bits(operand, type_))
    arguments += [0] * (len(signature) - len(arguments))
    routine = resolve(entry, tuple(described))
    trace = machine.call(entry, arguments)
    views = [o.of(ours_ub if o.space == "ub" else ours_gm) if isinstance(o, View) else o for o in operands]
    with np.errstate(all="ignore"):
        routine.body(*views)
    theirs, mine = [], []
    touched = np.zeros(machine.ub.size, np.uint8)
    for position in (*routine.writes, *routine.temporaries):
        operand = operands[position]
        assert isinstance(operand, View)
        if operand.space == "ub" and operand.bytes:
            touched[operand.offset // 32 * 32 : -(-(operand.offset + operand.bytes) // 32) * 32] = 1
        if position in routine.writes:
            theirs.append(_logical(operand, machine.ub if operand.space == "ub" else gm))
            mine.append(_logical(operand, ours_ub if operand.space == "ub" else ours_gm))
    for position, extent in routine.reach:
        operand = operands[position]
        assert isinstance(operand, View)
        inner = operand.of(machine.ub)
        shape, strides = extent(inner.shape, inner.strides, inner.itemsize)
        np.ndarray(shape, f"u{inner.itemsize}", touched, operand.offset, strides).fill(
            (1 << (8 * inner.itemsize)) - 1
        )
    strayed = np.flatnonzero((machine.ub != before) & (touched == 0)).tolist()
    return Outcome(routine, theirs, mine, strayed, trace)


def _logical(operand: View, memory: np.ndarray) -> np.ndarray:
    """Elements, with what is to be compared beside them; the bits of an i1 operand."""
    values = operand.of(memory)
    if operand.before or operand.after:
        row = operand.before + operand.sizes[-1] + operand.after
        start = operand.offset + (operand.shift - operand.before) * values.itemsize
        values = np.ndarray((*operand.sizes[:-1], row), values.dtype, memory, start, values.strides)
    values = values.copy()
    if operand.element == "i1":
        return np.unpackbits(values, axis=-1, count=operand.sizes[-1], bitorder="little")
    return values


_SCALARS = {
    "float": "f32",
    "half": "f16",
    "bfloat": "bf16",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "i1": "i1",
}


def _bits(value: int | float, type_: str) -> int | float:
    if type_ == "half":
        return int(np.array([value], np.float16).view(np.uint16)[0])
    return value


def types(entry: str) -> list[str]:
    """The C types in an entry's name, as element names."""
    return [_ELEMENT[t] for t in re.findall("|".join(sorted(_ELEMENT, key=len, reverse=True)), entry)]
