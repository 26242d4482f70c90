"""Memory as the emitter sees it: on-chip buffers, global tensors, and strided views of both over loop axes.

Every on-chip buffer is one flat allocation, and every operand a view of it: an element offset, and for each axis of
the loop nest a stride (0 where the operand does not depend on the axis). Reshapes, permutations and broadcasts are
then only other strides. What the hardware adds is alignment: a vector instruction addresses rows that start at
multiples of 32 bytes, so neighbouring axes are merged while all operands allow it (`coalesce`), and what remains
must have aligned outer strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from monotile.targets.npuir.mlir import ITEM_BITS

ALIGNMENT = 32  # bytes; a UB block, the unit of vector and DMA addressing
LONE = 8        # elements that a buffer of one element has room for, and that instructions on it take

ELEMENT = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "uint32": "i32",
    "int16": "i16", "uint16": "i16", "int8": "i8", "uint8": "i8", "bool": "i1",
    "float8_e4m3fn": "i8", "float8_e4m3": "i8",
}


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def block_elements(element: str) -> int:
    """Elements in one 32-byte block (bits for masks)."""
    return ALIGNMENT * 8 // ITEM_BITS[element]


@dataclass(frozen=True)
class Offset:
    """``constant + name`` elements, where ``name`` (an SSA index) is known to be a multiple of ``multiple``."""

    constant: int = 0
    name: str | None = None
    multiple: int = 0

    def aligned_to(self, block: int) -> bool:
        return self.constant % block == 0 and (self.name is None or self.multiple % block == 0)


@dataclass(frozen=True, eq=False)
class OnChip:
    """A flat allocation in UB, and the row-major (possibly row-padded) layout of its logical shape."""

    name: str
    size: int
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    label: str

    @property
    def is_lone(self) -> bool:
        """Does the buffer hold one element?"""
        return math.prod(self.shape) == 1


@dataclass(frozen=True, eq=False)
class Global:
    """A tensor in global memory: a flat memref argument with symbolic sizes and strides (TIR expressions)."""

    name: str
    element: str
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    label: str


@dataclass(frozen=True)
class View:
    """An operand over the axes of a loop nest. ``dtype`` is TIR's name (it tells uint8 from int8)."""

    memory: OnChip
    dtype: str
    offset: Offset
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def element(self) -> str:
        return self.memory.element

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes the operand varies over."""
        return tuple(a for a, (extent, stride) in enumerate(zip(self.extents, self.strides)) if stride and extent > 1)

    @property
    def order(self) -> tuple[int, ...]:
        """The axes it varies over, outermost in memory first."""
        return tuple(sorted(self.axes, key=lambda a: (-self.strides[a], a)))

    def select(self, axes: Sequence[int]) -> View:
        return replace(self, extents=tuple(self.extents[a] for a in axes), strides=tuple(self.strides[a] for a in axes))


def same_place(a: View, b: View) -> bool:
    return a.memory is b.memory and a.offset == b.offset and a.extents == b.extents and a.strides == b.strides


def common_order(views: Sequence[View]) -> tuple[int, ...]:
    """The memory order that the views' axes should take: that of the view with most axes, the rest in front."""
    best: View = max(views, key=lambda v: len(v.axes))
    order = list(best.order)
    for view in views:
        for axis in view.axes:
            if axis not in order:
                order.insert(0, axis)
    return tuple(order)


def agrees(view: View, order: Sequence[int]) -> bool:
    """Is the view laid out in this order (axes it does not vary over do not matter)?"""
    wanted = [a for a in order if a in view.axes]
    return list(view.order) == wanted


def coalesce(views: Sequence[View]) -> list[View]:
    """Merge neighbouring axes that are contiguous, or absent, in every view; drop axes of extent 1.

    The views have one rank and equal extents; the result may have rank 0 (one element).
    """
    rank = len(views[0].extents)
    kept = [a for a in range(rank) if views[0].extents[a] != 1]
    extents = [views[0].extents[a] for a in kept]
    strides = [[view.strides[a] for a in kept] for view in views]
    axis = len(kept) - 2
    while axis >= 0:
        inner = extents[axis + 1]
        if all(row[axis] == inner * row[axis + 1] for row in strides):
            extents[axis: axis + 2] = [extents[axis] * inner]
            for row in strides:
                row[axis: axis + 2] = [row[axis + 1]]
        axis -= 1
    return [replace(view, extents=tuple(extents), strides=tuple(row)) for view, row in zip(views, strides)]


def row_pitch(columns: int, element: str) -> int:
    """Elements from row to row of a padded tile. A mask's rows follow those of the 32-bit tiles it comes from."""
    return round_up(columns, block_elements("i32" if element == "i1" else element))


def whole_rows(views: Sequence[View]) -> list[View]:
    """Views of tiles padded alike, widened to their padding, so that the rows become one run.

    Instructions of one dimension then take them in one piece; the padding is computed along and never read out.
    """
    extents, strides = views[0].extents, [v.strides for v in views]
    if len(extents) < 2:
        return list(views)
    pitch = strides[0][-2]
    if pitch <= extents[-1] or any(s[-1] != 1 or s[-2] != pitch for s in strides):
        return list(views)
    return [replace(v, extents=(*extents[:-1], pitch)) for v in views]


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without its last axes of one element: what is left ends in the rows that padding is about."""
    kept = len(shape)
    while kept and shape[kept - 1] == 1:
        kept -= 1
    return tuple(shape[:kept])


def layout(shape: Sequence[int], element: str, padded: bool) -> tuple[int, tuple[int, ...]]:
    """(elements to allocate, strides) of a row-major buffer; ``padded`` starts every row on a 32-byte block."""
    strides = [1] * len(shape)
    last = len(squeezed(shape)) - 1
    for axis in range(len(shape) - 2, -1, -1):
        below = shape[axis + 1]
        if padded and axis == last - 1:
            below = row_pitch(below, element)
        strides[axis] = strides[axis + 1] * below
    size = strides[0] * shape[0] if shape else 1
    if len(shape) == 1:
        size = shape[0]
    if math.prod(shape) == 1:
        size = LONE
    return max(round_up(size, block_elements(element)), block_elements(element)), tuple(strides)
