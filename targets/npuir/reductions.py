"""T.reduce_*: over any axis, by the library's last-axis and first-axis entries.

The 910B library has no reduction over a middle axis, so that one is a loop of first-axis reductions over the outer
axis, or a chain of elementwise operations over slices, whichever is fewer instructions.
"""

from __future__ import annotations

from dataclasses import replace

from monotile.targets.npuir.context import Context, Misaligned, Refused
from monotile.targets.npuir.memory import OnChip, View, block_elements, coalesce
from monotile.targets.npuir.scalars import Scalars
from monotile.targets.npuir.vectors import Vectors

_COMBINE = {"max": "vmax", "min": "vmin", "sum": "vadd"}


class Reductions:
    def __init__(self, context: Context, scalars: Scalars, vectors: Vectors, generation: str) -> None:
        self.context = context
        self.writer = context.writer
        self.scalars = scalars
        self.vectors = vectors
        # the 950's dialect distinguishes unsigned sources; every integer tile here is signed
        self.attributes = "unsigned_src = false " if generation == "c310" else ""

    def reduce(self, source: View, target: View, kind: str, axis: int, clear: bool) -> None:
        """``source`` over the nest's axes; ``target`` the same, with stride 0 on ``axis``."""
        if kind.startswith("abs"):
            absolute = self.context.temporary(source.order, source.dtype, "absolute")
            if source.element not in ("f32", "f16"):
                raise Refused(f"reduce_{kind} of {source.dtype} is not lowered; reduce in float32")
            self.vectors.apply("vabs", [source], absolute)
            source, kind = absolute, kind[3:]
        if kind not in _COMBINE:
            raise Refused(f"reduce_{kind} is not lowered; max, min, sum, absmax and abssum are")
        if source.dtype != target.dtype:
            raise Refused(f"a reduction from {source.dtype} to {target.dtype} is not lowered")
        if source.element not in ("f32", "f16", "i32", "i16"):
            raise Refused(f"a reduction of {source.dtype} is not lowered; reduce in float32 or int32")
        result = target
        if not clear:
            result = self.context.temporary(target.order, target.dtype, "partial")
        self._into(source, result, kind, axis)
        if not clear:
            self.vectors.apply(_COMBINE[kind], [target, result], target)

    def _into(self, source: View, result: View, kind: str, axis: int) -> None:
        extent = source.extents[axis]
        if extent == 1:
            self.vectors.assign(result, replace(source, strides=result.strides) if not source.axes else source)
            return
        outer = [a for a in source.order if a != axis and source.strides[a] > source.strides[axis]]
        inner = [a for a in source.order if a != axis and source.strides[a] < source.strides[axis]]
        if not inner and self._dense_fragments(source, axis):
            self._slices(source, result, kind, axis)
        elif not inner:
            self._last(source, result, kind, [*outer, axis])
        elif not outer:
            self._first(source, result, kind, [axis, *inner])
        else:
            self._middle(source, result, kind, outer, axis, inner)

    def _dense_fragments(self, source: View, axis: int) -> bool:
        """Rows of a reshaped tile that are no whole blocks: they cannot be padded, and are gathered slice by slice."""
        ragged = source.extents[axis] % block_elements(source.element) != 0
        return ragged and len(source.axes) > 1 and source.memory.label in self.context.aliased

    def _last(self, source: View, result: View, kind: str, order: list[int]) -> None:
        """[rows, columns] -> [rows, 1]"""
        columns = source.extents[order[-1]]
        rows, out = coalesce([source.select(order[:-1]), result.select(order[:-1])]) if len(order) > 1 else (
            replace(source, extents=(), strides=()), replace(result, extents=(), strides=()))
        self._rows(rows, out, kind, columns)

    def _rows(self, source: View, result: View, kind: str, columns: int) -> None:
        if len(source.extents) > 1:
            self.vectors.turns(source.extents[0], lambda step: self._rows(
                self.vectors.step_into(source, step), self.vectors.step_into(result, step), kind, columns))
            return
        if not source.extents:
            flat = replace(source, extents=(columns,), strides=(1,))
            one = replace(result, extents=(1,), strides=(1,))
            self._emit(kind, flat, one, 0)
            return
        matrix = replace(source, extents=(*source.extents, columns), strides=(*source.strides, 1))
        column = replace(result, extents=(*result.extents, 1), strides=(*result.strides, 1))
        if result.strides[0] != 1 and result.extents[0] > 1:
            # a column of a padded tile: reduce densely, then copy each scalar would be slow; ask for another layout
            raise Misaligned(result.memory)
        self._emit(kind, matrix, column, 1)

    def _first(self, source: View, result: View, kind: str, order: list[int]) -> None:
        """[rows, columns] -> [1, columns]"""
        rows = source.extents[order[0]]
        below, out = coalesce([source.select(order[1:]), result.select(order[1:])])
        if len(below.extents) > 1:
            self._slices(source, result, kind, order[0])
            return
        if not below.extents:
            raise Refused("a reduction over an axis with nothing inside it reached the first-axis form")
        matrix = replace(source, extents=(rows, *below.extents), strides=(source.strides[order[0]], *below.strides))
        line = replace(result, offset=out.offset, extents=(1, *out.extents), strides=(out.extents[0], *out.strides))
        self._emit(kind, matrix, line, 0)

    def _middle(self, source: View, result: View, kind: str, outer: list[int], axis: int, inner: list[int]) -> None:
        turns = 1
        for a in outer:
            turns *= source.extents[a]
        if source.extents[axis] - 1 <= turns:
            self._slices(source, result, kind, axis)
            return
        order = [*outer, axis, *inner]
        picked, out = source.select(order), result.select(order)
        self._planes(picked, out, kind, len(outer))

    def _planes(self, source: View, result: View, kind: str, outer: int) -> None:
        if outer:
            self.vectors.turns(source.extents[0], lambda step: self._planes(
                self.vectors.step_into(source, step), self.vectors.step_into(result, step), kind, outer - 1))
            return
        below, out = coalesce([source.select(range(1, len(source.extents))),
                               result.select(range(1, len(result.extents)))])
        if len(below.extents) != 1:
            raise Refused(f"a reduction of {source.memory.label} over strides {source.strides} is not lowered")
        matrix = replace(source, extents=(source.extents[0], *below.extents),
                         strides=(source.strides[0], *below.strides))
        line = replace(out, extents=(1, *out.extents), strides=(out.extents[0], *out.strides))
        self._emit(kind, matrix, line, 0)

    def _slices(self, source: View, result: View, kind: str, axis: int) -> None:
        """Combine the slices along the axis one after another, in ascending order."""
        def slice_at(step: int) -> View:
            strides = tuple(0 if a == axis else s for a, s in enumerate(source.strides))
            offset = replace(source.offset, constant=source.offset.constant + step * source.strides[axis])
            return self.vectors.contiguous(replace(source, offset=offset, strides=strides))

        self.vectors.apply(_COMBINE[kind], [slice_at(0), slice_at(1)], result)
        for step in range(2, source.extents[axis]):
            self.vectors.apply(_COMBINE[kind], [result, slice_at(step)], result)

    def _emit(self, kind: str, source: View, result: View, dimension: int) -> None:
        memory: OnChip = result.memory
        if not result.offset.aligned_to(block_elements(memory.element)):
            raise Misaligned(memory)
        self.writer.add(f"hivm.hir.vreduce <{kind}> ins({self.vectors.operand(source)}) "
                        f"outs({self.vectors.operand(result)}) {self.attributes}reduce_dims = [{dimension}]")
