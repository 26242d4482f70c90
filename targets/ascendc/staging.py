"""Copies between global memory and registers go through UB, by DMA; loads that may be short are masked afterwards.

A copy of one dtype between global memory and UB is DMA's own; a box of short rows is, where they follow each other in
memory, one run. A copy that ends in registers, or changes the dtype, becomes two: DMA to a buffer in UB, and a copy
from there by threads. A nest that does nothing in global memory but read, or write, one box of it is such a copy and a
nest in UB. That needs room, and rows of whole 32-byte blocks; otherwise threads reach global memory themselves, element
by element.

DMA leaves what it does not load as it was. A load whose box may leave the tensor is followed by a mask that zeroes the
rest: after the load and not before it, since a fill in front would keep the next tile's load waiting.
"""

from __future__ import annotations

import math
from typing import Any

from monotile.targets.ascendc.grid import Launch
from monotile.targets.ascendc.tir import (
    BLOCK_BYTES,
    COPY,
    FILL,
    READ,
    REGION,
    WRITE,
    Region,
    accesses,
    as_one_run,
    branches,
    copy,
    fits_dma,
    flat,
    flat_view,
    is_call,
    is_global,
    is_local,
    is_serial,
    item_bytes,
    nested,
    region,
    sequence,
    source_and_target,
    tirx,
    tvm,
)


class Staging:
    """Adds UB buffers while ``room`` (bytes) lasts. ``is_uniform(expression)``: is it the same for all threads?

    Without ``use_dma`` threads make every copy.
    """

    def __init__(self, room: int, is_uniform: Any, launch: Launch, statements: list[Any], use_dma: bool) -> None:
        self.room, self.is_uniform, self.use_dma = room, is_uniform, use_dma
        self.buffers: list[Any] = []
        self._analyzer = tvm.arith.Analyzer()
        for index, extent in launch.grid:
            self._analyzer.bind(index, tvm.ir.Range.from_min_extent(0, extent))
        for statement in statements:
            tirx.stmt_functor.post_order_visit(statement, self._learn)

    def _learn(self, node: Any) -> None:
        """What a name stands for, so that bounds see through it."""
        if isinstance(node, tirx.Bind) and str(node.var.dtype).startswith("int") \
                and not accesses(tirx.Evaluate(node.value)).reads:
            self._analyzer.bind(node.var, node.value)

    def _stays_inside(self, first: Any, extent: Any, size: Any) -> bool:
        tiled = isinstance(size, tirx.IntImm) and isinstance(extent, tirx.IntImm) and int(size) % int(extent) == 0 \
            and self._analyzer.can_prove(tirx.floormod(first, extent) == 0)   # a grid's blocks begin inside
        return tiled or bool(self._analyzer.can_prove(first + extent <= size))

    def _on_block(self, run: Region) -> bool:
        start = self._analyzer.modular_set(run.first[0])
        return math.gcd(int(start.coeff), int(start.base)) * item_bytes(run.buffer) % BLOCK_BYTES == 0

    def statements(self, statements: list[Any]) -> list[Any]:
        return [each for statement in statements for each in self._statement(statement)]

    def _statement(self, statement: Any) -> list[Any]:
        if is_call(statement, COPY):
            return self._copy(statement)
        if is_serial(statement) and self.is_uniform(statement.extent):
            return [nested(statement, sequence(self.statements(flat(statement.body))))]
        if isinstance(statement, tirx.IfThenElse) and self.is_uniform(statement.condition):
            cases = [sequence(self.statements(flat(case))) for case in branches(statement)]
            return [tirx.IfThenElse(statement.condition, *cases, *([None] * (2 - len(cases))))]
        if self.use_dma and isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL:
            return self._nest(statement)
        return [statement]

    def _nest(self, nest: Any) -> list[Any]:
        """A nest that does nothing in global memory but read, or write, one box of it: DMA moves the box."""
        loops, store = [], nest
        while isinstance(store, tirx.For) and store.kind == tirx.ForKind.PARALLEL:
            loops.append(store)
            store = store.body
        if not isinstance(store, tirx.BufferStore) \
                or not all(isinstance(n, tirx.IntImm) for loop in loops for n in (loop.min, loop.extent)):
            return [nest]
        loads = not is_global(store.buffer)
        read = [b for b in accesses(tirx.Evaluate(store.value)).reads.values() if is_global(b)]
        value = store.value.value if isinstance(store.value, tirx.Cast) else store.value
        if not (isinstance(value, tirx.BufferLoad) and is_global(value.buffer) if loads else not read):
            return [nest]
        access = value if loads else store
        box = self._box(access, loops, WRITE if not loads else READ)
        if box is None or not (fits_dma(box) or as_one_run(box) is not None):
            return [nest]
        need = math.prod(box.sizes) * item_bytes(access.buffer)
        if need > self.room:
            return [nest]
        self.room -= need
        staged = tirx.decl_buffer(box.sizes, access.buffer.dtype, f"{access.buffer.name}_ub", scope="shared.dyn")
        self.buffers.append(staged)
        place = [index - first for index, first in zip(access.indices, box.first)]
        place = [self._analyzer.simplify(each) for each in place]
        if loads:
            seen: Any = tirx.BufferLoad(staged, place)
            seen = tirx.Cast(store.value.dtype, seen) if isinstance(store.value, tirx.Cast) else seen
            body: Any = tirx.BufferStore(store.buffer, seen, store.indices)
        else:
            body = tirx.BufferStore(staged, store.value, place)
        for loop in reversed(loops):
            body = nested(loop, body)
        if loads:
            return [*self._copy(copy(box.call, region(staged, WRITE))), body]
        return [body, *self._copy(copy(region(staged, READ), box.call))]

    def _box(self, access: Any, loops: list[Any], mask: int) -> Region | None:
        """The box of global memory that a nest walks through, one axis a loop; None where it is not such a walk."""
        zero = {loop.loop_var: tirx.IntImm("int32", 0) for loop in loops}
        first, extents, walked = [], [], []
        for index in access.indices:
            base = self._analyzer.simplify(tirx.stmt_functor.substitute(index, zero))
            along = [loop for loop in loops if loop.loop_var in accesses(tirx.Evaluate(index)).variables]
            if len(along) > 1 or accesses(tirx.Evaluate(index)).reads or not self.is_uniform(base):
                return None
            if along and not self._analyzer.can_prove_equal(index, base + along[0].loop_var):
                return None
            walked += along
            first.append(base)
            extents.append(along[0].extent if along else tirx.IntImm("int32", 1))
        if len(walked) != len({loop.loop_var for loop in walked}) or len(walked) != len(loops) \
                or any(int(loop.min) for loop in loops):
            return None
        return Region(tirx.call_intrin("handle", REGION, tirx.BufferLoad(access.buffer, first), mask, *extents))

    def _copy(self, statement: Any) -> list[Any]:
        source, target = source_and_target(statement)
        loads = is_global(source.buffer)
        if loads == is_global(target.buffer):
            return [statement]
        far, near = (source, target) if loads else (target, source)
        if not self.use_dma:
            return [statement if is_local(near.buffer) else _by_threads(source, target)]
        run = None if fits_dma(far) else as_one_run(far)
        if not is_local(near.buffer) and source.buffer.dtype == target.buffer.dtype:
            if run is not None and (whole := as_one_run(near)) is not None and self._on_block(whole):
                far, near = run, whole
                statement = copy(far.call, near.call) if loads else copy(near.call, far.call)
            elif not fits_dma(far):
                return [_by_threads(source, target)]
            return self._masked(statement) if loads else self._by_rows(statement)
        far = run or far
        if not fits_dma(far) or not all(isinstance(extent, tirx.IntImm) for extent in near.extents):
            return [statement if is_local(near.buffer) else _by_threads(source, target)]
        sizes = near.sizes
        need = math.prod(sizes) * item_bytes(far.buffer)
        if need > self.room:
            return [statement]
        self.room -= need
        staged = tirx.decl_buffer(sizes, far.buffer.dtype, f"{near.buffer.name}_ub", scope="shared.dyn")
        self.buffers.append(staged)
        moved = flat_view(staged) if run is not None else staged
        if loads:
            return [*self._masked(copy(far.call, region(moved, WRITE))), copy(region(staged, READ), near.call)]
        return [copy(near.call, region(staged, WRITE)), *self._by_rows(copy(region(moved, READ), far.call))]

    def _masked(self, load: Any) -> list[Any]:
        source, target = source_and_target(load)
        leaves, element = self._leaves(source, target)
        if leaves is None:
            return self._by_rows(load)
        variables, outside, place = element
        body = tirx.IfThenElse(outside, tirx.BufferStore(target.buffer, tirx.const(0, target.buffer.dtype), place),
                               None)
        for variable, extent in reversed(list(zip(variables, target.extents))):
            body = tirx.For(variable, 0, extent, tirx.ForKind.PARALLEL, body)
        return [*self._by_rows(load), tirx.IfThenElse(leaves, body, None)]

    def _by_rows(self, statement: Any) -> list[Any]:
        """DMA of a box; row by row where rows may be cut short.

        TileLang gives a box whose rows are cut the cut length as their distance in UB too; the tile's rows are not so.
        """
        source, target = source_and_target(statement)
        far, near = (source, target) if is_global(source.buffer) else (target, source)
        axis = len(far.extents) - 1
        first, extent, size = far.first[axis], far.extents[axis], far.buffer.shape[axis]
        rows = [d for d in range(axis) if not _is_one(far.extents[d])]
        if not rows or self._stays_inside(first, extent, size):
            return [statement]
        matching = [d for d, e in enumerate(near.extents) if not _is_one(e)]
        if _is_one(extent) or len(matching) != len(rows) + 1:
            return [statement]
        variables = [tirx.Var(f"row{d}", "int32") for d in rows]
        moved = []
        for each, axes in ((far, rows), (near, matching[:-1])):
            places, extents = each.first, each.extents
            for d, variable in zip(axes, variables):
                places[d], extents[d] = places[d] + variable, 1
            mask = each.call.args[1]
            moved.append(tirx.call_intrin("handle", REGION, tirx.BufferLoad(each.buffer, places), mask, *extents))
        one_row: Any = copy(*(moved if far is source else reversed(moved)))
        for d, variable in reversed(list(zip(rows, variables))):
            # rows beyond the tensor are not there to be moved
            one_row = tirx.IfThenElse(far.first[d] + variable < far.buffer.shape[d], one_row, None)
            one_row = tirx.For(variable, 0, far.extents[d], tirx.ForKind.SERIAL, one_row)
        return [tirx.IfThenElse(first + extent <= size, statement, one_row)]

    def _leaves(self, source: Region, target: Region) -> tuple[Any, Any]:
        """(may the box leave the tensor, (variables, is this element outside, its place in the target)).

        The first is None where it cannot.
        """
        wide = [d for d, extent in enumerate(source.extents) if not _is_one(extent)]
        matching = [d for d, extent in enumerate(target.extents) if not _is_one(extent)]
        variables = [tirx.Var(f"z{d}", "int32") for d in range(len(target.extents))]
        leaves, outside = None, None
        for d, (first, extent, size) in enumerate(zip(source.first, source.extents, source.buffer.shape)):
            if self._stays_inside(first, extent, size):
                continue
            leaves = _either(leaves, first + extent > size)
            position = first + (variables[matching[wide.index(d)]] if d in wide else 0)
            outside = _either(outside, position >= size)
        place = [first + variable for first, variable in zip(target.first, variables)]
        return leaves, (variables, outside, place)


def _by_threads(source: Region, target: Region) -> Any:
    """A copy between global memory and UB, element by element; what lies outside of the tensor reads as zero.

    Written out, as TileLang would make DMA of a copy whatever its rows.
    """
    loads = is_global(source.buffer)
    far = source if loads else target
    wide = [[d for d, extent in enumerate(box.extents) if not _is_one(extent)] for box in (source, target)]
    variables = [tirx.Var(f"e{d}", "int32") for d in range(len(wide[0]))]
    places = []
    for box, axes in zip((source, target), wide):
        place = box.first
        for axis, variable in zip(axes, variables):
            place[axis] = place[axis] + variable
        places.append(place)
    inside: Any = None
    for position, size in zip(places[0] if loads else places[1], far.buffer.shape):
        inside = position < size if inside is None else tirx.And(inside, position < size)
    value = tirx.BufferLoad(source.buffer, places[0])
    if source.buffer.dtype != target.buffer.dtype:
        value = tirx.Cast(str(target.buffer.dtype), value)
    if loads:
        value = tirx.if_then_else(inside, value, tirx.const(0, target.buffer.dtype))
    body: Any = tirx.BufferStore(target.buffer, value, places[1])
    if not loads:
        body = tirx.IfThenElse(inside, body, None)
    for variable, axis in reversed(list(zip(variables, wide[0]))):
        body = tirx.For(variable, 0, source.extents[axis], tirx.ForKind.PARALLEL, body)
    return body


def in_ub(statements: list[Any], registers: dict[Any, Any], computed: bool = False) -> dict[Any, Any]:
    """Register buffers that are only copied to and from global memory as they are, and filled: UB is their place.

    With ``computed``, those too that nests compute on: SIMD functions do so in UB. Gives the UB buffer for each.
    """
    other: set[Any] = set()
    copied: set[Any] = set()

    def visit(node: Any) -> None:
        if not isinstance(node, tirx.Evaluate):
            if isinstance(node, (tirx.BufferStore, tirx.BufferLoad)) and hash(node) not in regions and not computed:
                other.add(node.buffer.data)
            return
        if is_call(node, COPY):
            source, target = source_and_target(node)
            near, far = (source, target) if is_local(source.buffer) else (target, source)
            plain = is_local(near.buffer) and is_global(far.buffer) and near.buffer.dtype == far.buffer.dtype
            if plain and (fits_dma(far) or (as_one_run(far) is not None and as_one_run(near) is not None)):
                copied.add(near.buffer.data)
            elif not computed or is_global(far.buffer) or is_global(near.buffer):
                other.update(r.buffer.data for r in (source, target))
        elif not is_call(node, FILL):
            other.update(accesses(node).reads)
            other.update(accesses(node).writes)

    regions: set[int] = set()
    for statement in statements:
        tirx.stmt_functor.post_order_visit(statement, lambda n: regions.update(
            [hash(n.args[0])] if isinstance(n, tirx.Call) and n.op.same_as(REGION) else []))
    for statement in statements:
        tirx.stmt_functor.post_order_visit(statement, visit)
    return {b: tirx.decl_buffer(b.shape, b.dtype, f"{b.name}_ub", scope="shared.dyn")
            for data, b in registers.items() if data in copied - other and str(b.scope()) == "local.fragment"}


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _either(a: Any, b: Any) -> Any:
    return b if a is None else tirx.Or(a, b)
