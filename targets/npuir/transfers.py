"""Copies between global memory and UB: clipped views, tails, and the order in which a tile lies in memory.

A tile is loaded in the order of the global tensor, so that the DMA moves whole rows. Where the tensor may end inside
the tile, the tile is zeroed first, but only then: an unconditional fill before every load would make the vector unit
the producer of the loading pipe's buffer and defeat double buffering.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monotile.targets.npuir.context import Context, Misaligned, NeedsPeeling, Refused
from monotile.targets.npuir.memory import ELEMENT, Global, Offset, View, agrees, block_elements
from monotile.targets.npuir.mlir import memref
from monotile.targets.npuir.scalars import Scalars
from monotile.targets.npuir.tir import Expr, constant_int, linear

if TYPE_CHECKING:
    from monotile.targets.npuir.vectors import Vectors


@dataclass
class Window:
    """A tile's place in a global tensor: per axis of the nest, in the tensor's memory order.

    ``sizes`` are ints, or SSA names where the tensor (or a guard) may end inside the tile; ``short`` is the SSA
    condition that it does (None: never); ``present`` the condition that anything is there at all (None: always).
    """

    memory: Global
    offset: str
    axes: list[int]
    extents: list[int]
    strides: list[int | str]
    sizes: list[int | str]
    short: str | None
    present: str | None

    def order(self) -> tuple[int, ...]:
        """The axes that move through the tensor, outermost first."""
        return tuple(a for a, extent in zip(self.axes, self.extents) if extent > 1)

    def steps(self) -> bool:
        """Does the innermost moving axis step over elements?"""
        moving = [stride for stride, extent in zip(self.strides, self.extents) if extent > 1]
        return bool(moving) and moving[-1] != 1


class Transfers:
    def __init__(self, context: Context, scalars: Scalars) -> None:
        self.context = context
        self.writer = context.writer
        self.scalars = scalars
        self.vectors: Vectors   # set by Vectors: zeroing and spreading tiles is vector work

    # ------------------------------------------------------------------ the place in global memory
    def window(self, buffer: Any, indices: list[Expr]) -> Window:
        context = self.context
        memory = context.memory[buffer]
        assert isinstance(memory, Global)
        indices = [context.simplify(i) for i in indices]
        per_axis: dict[int, list[tuple[int, int]]] = {}
        bases: list[Expr] = []
        for dimension, index in enumerate(indices):
            form = linear(index, context.axes, context.zero)
            if form is None:
                raise NeedsPeeling(f"an index of {memory.label} is not linear in the loop variables: {index}")
            if any(context.depends_on_axes(v) for v in [form.base]):
                raise NeedsPeeling(f"{memory.label} is indexed by values of a tile")
            bases.append(context.simplify(form.base))
            for axis, coefficient in enumerate(form.coefficients):
                if coefficient:
                    per_axis.setdefault(axis, []).append((dimension, coefficient))
        strides: dict[int, int | str] = {}
        for axis, uses in per_axis.items():
            if len(uses) > 1:
                raise Refused(f"one loop variable moves along two dimensions of {memory.label}")
            (dimension, coefficient), = uses
            stride = memory.strides[dimension]
            constant = constant_int(stride)
            strides[axis] = coefficient * constant if constant is not None \
                else self.scalars.multiply(self.scalars.index(stride), coefficient)
        names = [self.scalars.index(base) for base in bases]
        sizes, short, present = self._clip(memory, indices, bases, names, per_axis)
        order = self._memory_order(memory, per_axis)
        return Window(memory, self.scalars.global_offset(memory, names), order, [context.extents[a] for a in order],
                      [strides[a] for a in order], [sizes.get(a, context.extents[a]) for a in order], short, present)

    def _memory_order(self, memory: Global, per_axis: dict[int, list[tuple[int, int]]]) -> list[int]:
        """Outer dimensions first; within one dimension the larger step first."""
        return sorted(per_axis, key=lambda a: (per_axis[a][0][0], -per_axis[a][0][1]))

    def _clip(self, memory: Global, indices: list[Expr], bases: list[Expr], names: list[str],
              per_axis: dict[int, list[tuple[int, int]]]) -> tuple[dict[int, int | str], str | None, str | None]:
        """Where the tile leaves the tensor: clipped extents, 'is it short', 'is there anything'."""
        context, writer = self.context, self.writer
        sizes: dict[int, int | str] = {}
        short: list[str] = []
        present: list[str] = []
        for dimension, base in enumerate(bases):
            limit = memory.shape[dimension]
            users = [(a, uses[0][1]) for a, uses in per_axis.items() if uses[0][0] == dimension]
            reach = sum((context.extents[a] - 1) * c for a, c in users)
            if not context.proves(base >= 0):
                present.append(writer.define(f"arith.cmpi sge, {names[dimension]}, {writer.constant(0)} : index"))
            if context.proves(base + reach < limit):
                continue
            end = self.scalars.index(limit)
            if not users:
                present.append(writer.define(f"arith.cmpi slt, {names[dimension]}, {end} : index"))
                continue
            axis, step = max(users, key=lambda u: u[1])
            if len(users) > 1:
                inner = sum((context.extents[a] - 1) * c for a, c in users if a != axis) + 1
                if inner > step or not context.proves(context.tvm.tirx.floormod(limit - base, step) == 0):
                    raise Refused(f"{memory.label} ends inside a row of a split index: {indices[dimension]}")
            left = writer.define(f"arith.subi {end}, {names[dimension]} : index")
            if step != 1:
                left = writer.define(f"arith.ceildivsi {left}, {writer.constant(step)} : index")
            extent = context.extents[axis]
            if not context.proves(base < limit):
                present.append(writer.define(f"arith.cmpi sgt, {left}, {writer.constant(0)} : index"))
            clipped = writer.define(f"arith.minsi {left}, {writer.constant(extent)} : index")
            sizes[axis] = clipped
            short.append(writer.define(f"arith.cmpi slt, {left}, {writer.constant(extent)} : index"))
        return sizes, self._any(short), self._all(present)

    def _any(self, conditions: list[str]) -> str | None:
        return self._joined("ori", conditions)

    def _all(self, conditions: list[str]) -> str | None:
        return self._joined("andi", conditions)

    def _joined(self, operation: str, conditions: list[str]) -> str | None:
        if not conditions:
            return None
        result = conditions[0]
        for other in conditions[1:]:
            result = self.writer.define(f"arith.{operation} {result}, {other} : i1")
        return result

    # ------------------------------------------------------------------ load
    def load(self, buffer: Any, indices: list[Expr], dtype: str, into: View | None = None) -> View:
        """The tile in UB; reads outside the tensor give 0."""
        window = self.window(buffer, indices)
        memory, order = window.memory, window.order()
        if window.steps():
            into = self._block_each(window, dtype)
            self._zero(into)   # the gaps too: gathering the elements reads the whole tile
        elif into is None or into.dtype != dtype or into.order != order:
            into = self.context.temporary(order, dtype, f"{memory.label} tile", by_rows=True)
        short = window.short
        if short is None and window.present is not None:
            # All or nothing. Not as branches: the vendor's pipeline folds `if absent {zero} else {load}` and then sets
            # no flag from the vector unit to the load two turns later (docs/upstream-issues.md).
            self._zero(into)
            with self.writer.block(f"scf.if {window.present}"):
                self._move("load", window, into, clipped=False)
            return into
        if window.present is not None:   # nothing there is the shortest of tails
            absent = self.writer.define(
                f"arith.xori {window.present}, {self.writer.constant(True, 'i1')} : i1")
            short = absent if short is None else self.writer.define(f"arith.ori {short}, {absent} : i1")
        if short is None:
            self._move("load", window, into, clipped=False)
            return into
        with self.writer.block(f"scf.if {short}"):
            self._zero(into)
            if window.present is not None:
                with self.writer.block(f"scf.if {window.present}"):
                    self._move("load", window, into, clipped=True)
            else:
                self._move("load", window, into, clipped=True)
            self.writer.otherwise()
            self._move("load", window, into, clipped=False)
        return into

    def _zero(self, into: View) -> None:
        zero = self.context.element_constant(0, into.element)
        if into.axes and into.strides[into.order[-1]] != 1:
            self.vectors.fill_whole(into.memory, into.dtype, zero)
        else:
            self.vectors.fill(into, zero)

    def _block_each(self, window: Window, dtype: str) -> View:
        """A tile whose every element has a 32-byte block: where the DMA steps over elements of global memory."""
        block = block_elements(ELEMENT[dtype])
        order = window.order()
        return self.context.temporary(order, dtype, f"{window.memory.label} steps", by_rows=True, spacing=block)

    # ------------------------------------------------------------------ store
    def store(self, window: Window, source: View, clips: dict[int, str]) -> None:
        """Write a tile; what lies outside the tensor, or past a guard (``clips``: axis -> SSA extent), is dropped."""
        if window.steps():
            spaced = self._block_each(window, source.dtype)
            self.vectors.space_out(source, spaced)
            source = spaced
        present = [window.present] if window.present is not None else []
        for position, axis in enumerate(window.axes):
            guard = clips.get(axis)
            if guard is None:
                continue
            size = window.sizes[position]
            name = self.writer.constant(size) if isinstance(size, int) else size
            window.sizes[position] = self.writer.define(f"arith.minsi {name}, {guard} : index")
            present.append(self.writer.define(
                f"arith.cmpi sgt, {guard}, {self.writer.constant(0)} : index"))
        anything = self._all(present)
        if anything is None:
            self._move("store", window, source, clipped=True)
            return
        with self.writer.block(f"scf.if {anything}"):
            self._move("store", window, source, clipped=True)

    # ------------------------------------------------------------------ the DMA itself
    def _move(self, operation: str, window: Window, tile: View, clipped: bool) -> None:
        """One DMA of up to three dimensions; further outer axes become loops."""
        memory = window.memory
        axes = window.order()
        keep = [window.axes.index(a) for a in axes]
        sizes: list[int | str] = [window.sizes[i] if clipped else window.extents[i] for i in keep]
        strides = [window.strides[i] for i in keep]
        if not agrees(tile, axes):
            raise Refused(f"a transfer of {memory.label} between different axis orders")
        inner = [tile.strides[a] for a in axes]
        sizes, strides, inner = _merge(sizes, strides, inner, self)
        if not sizes:
            sizes, strides, inner = [1], [1], [1]
        self._emit_move(operation, memory, window.offset, sizes, strides, tile, tile.offset, inner)

    def _emit_move(self, operation: str, memory: Global, place: str, sizes: list[int | str],
                   strides: list[int | str], tile: View, offset: Offset, inner: list[int]) -> None:
        if len(sizes) > 3:
            count = sizes[0] if isinstance(sizes[0], str) else self.writer.constant(sizes[0])
            turn = self.writer.fresh("i")
            zero, one = self.writer.constant(0), self.writer.constant(1)
            with self.writer.block(f"scf.for {turn} = {zero} to {count} step {one}"):
                there = self.scalars.add(place, self.scalars.multiply(turn, strides[0]))
                moved = self.scalars.multiply(turn, inner[0])
                name = moved if offset.name is None else self.scalars.add(offset.name, moved)
                multiple = inner[0] if offset.name is None else math.gcd(inner[0], offset.multiple)
                self._emit_move(operation, memory, there, sizes[1:], strides[1:], tile,
                                Offset(offset.constant, name, multiple), inner[1:])
            return
        if strides[-1] != 1 and sizes[-1] != 1:   # element by element, each in its own block
            self._emit_move(operation, memory, place, [*sizes, 1], [*strides, 1], tile, offset, [*inner, 1])
            return
        block = block_elements(memory.element)
        rows = [s for n, s in zip(sizes[:-1], inner[:-1]) if n != 1]
        if inner[-1] != 1 and sizes[-1] != 1:
            raise Refused(f"the tile of {memory.label} is not contiguous along the rows of the transfer")
        if not offset.aligned_to(block) or any(s % block for s in rows):
            raise Misaligned(tile.memory)
        element = memory.element
        shown = [_static_stride(n, s) for n, s in zip(sizes, strides)]
        flat = memref(["?"], element, "gm")
        there = memref(sizes, element, "gm", shown, "?")
        g = self.writer.define(
            f"memref.reinterpret_cast {memory.name} to offset: [{place}], sizes: {_list(sizes)}, "
            f"strides: {_list(shown)} : {flat} to {there}", stem="gm")
        here_offset: int | str = offset.constant if offset.name is None else "?"
        start = str(offset.constant) if offset.name is None else self.scalars.offset_name(offset)
        here = memref(sizes, element, "ub", inner, here_offset)
        u = self.writer.define(
            f"memref.reinterpret_cast {tile.memory.name} to offset: [{start}], sizes: {_list(sizes)}, "
            f"strides: {_list(inner)} : {memref([tile.memory.size], element, 'ub')} to {here}", stem="ub")
        first, second = ((g, there), (u, here)) if operation == "load" else ((u, here), (g, there))
        self.writer.add(f"hivm.hir.{operation} ins({first[0]} : {first[1]}) outs({second[0]} : {second[1]})")


def _static_stride(size: int | str, stride: int | str) -> int | str:
    return 1 if size == 1 and isinstance(stride, str) else stride


def _list(values: list[int | str] | list[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def _merge(sizes: list[int | str], strides: list[int | str], inner: list[int],
           transfers: Transfers) -> tuple[list[int | str], list[int | str], list[int]]:
    """Merge axes that are contiguous on both sides; only the outermost of a merged run may be clipped."""
    sizes, strides, inner = list(sizes), list(strides), list(inner)
    axis = len(sizes) - 2
    while axis >= 0:
        below = sizes[axis + 1]
        step, under = strides[axis], strides[axis + 1]
        if isinstance(below, int) and isinstance(step, int) and isinstance(under, int) \
                and step == below * under and inner[axis] == below * inner[axis + 1]:
            outer = sizes[axis]
            sizes[axis: axis + 2] = [outer * below if isinstance(outer, int)
                                     else transfers.scalars.multiply(outer, below)]
            del strides[axis], inner[axis]
        axis -= 1
    return sizes, strides, inner
