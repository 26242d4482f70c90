"""Nests and reductions as loops over vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monotile.targets.ascendc.simd.addresses import (
    Loop,
    NoSimd,
    address_of,
    analyzer_of,
    dense_strides,
    on_block,
)
from monotile.targets.ascendc.simd.expressions import ALL_LANES, LANES, Body, lanes, pointer_to, simd
from monotile.targets.ascendc.tir import READ, WRITE, Region, flat, flat_view, is_global, nested, sequence, tirx

_FOLD = {"max": "vmax", "min": "vmin", "sum": "vadd"}
_ACROSS = {"max": "vcmax", "min": "vcmin"}


def lower_nest(statement: Any, is_uniform: Callable[[Any], bool]) -> list[Any]:
    """A T.Parallel nest. Raises NoSimd."""
    loops, inner = [], statement
    while isinstance(inner, tirx.For) and inner.kind == tirx.ForKind.PARALLEL:
        if not isinstance(inner.extent, tirx.IntImm) or not isinstance(inner.min, tirx.IntImm) or int(inner.min) != 0:
            raise NoSimd("a T.Parallel whose extent is no number")
        loops.append(Loop(inner.loop_var, int(inner.extent)))
        inner = inner.body
    single = [loop for loop in loops if loop.extent == 1]
    loops = [loop for loop in loops if loop.extent != 1] or loops[-1:]   # registers run along a loop that has turns
    inner = tirx.stmt_functor.substitute(inner, {loop.variable: tirx.IntImm("int32", 0) for loop in single
                                                 if loop not in loops})
    analyzer = analyzer_of()
    for loop in loops:
        analyzer.bind(loop.variable, tirx_range(loop.extent))
    loops, inner = _collapsed(loops, inner, analyzer)
    reason: NoSimd | None = None
    for vector in reversed(range(len(loops))):
        try:
            return _over_registers(loops, vector, inner, analyzer, is_uniform)
        except NoSimd as error:
            reason = reason or error
    raise reason or NoSimd("a nest without loops")


def tirx_range(extent: int) -> Any:
    from tilelang import tvm

    return tvm.ir.Range.from_min_extent(0, extent)


def _accesses(statement: Any) -> list[tuple[Any, list[Any]]]:
    found: list[tuple[Any, list[Any]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, (tirx.BufferLoad, tirx.BufferStore)):
            found.append((node.buffer, list(node.indices)))

    tirx.stmt_functor.post_order_visit(statement, visit)
    return found


def _collapsed(loops: list[Loop], inner: Any, analyzer: Any) -> tuple[list[Loop], Any]:
    """Neighbouring loops whose every access runs on from one to the next are one loop over flat buffers."""
    inner = _Flattened({}, analyzer).visit_stmt(inner)
    if len(loops) < 2 or _uses_as_values(inner, loops):
        return loops, inner
    accesses = _accesses(inner)
    try:
        forms = [address_of(buffer, indices, loops, analyzer) for buffer, indices in accesses]
    except NoSimd:
        return loops, inner
    groups: list[list[int]] = [[0]]
    for position in range(1, len(loops)):
        before = groups[-1][-1]
        runs_on = all(f.coefficients[before] == f.coefficients[position] * loops[position].extent for f in forms)
        if runs_on:
            groups[-1].append(position)
        else:
            groups.append([position])
    if len(groups) == len(loops):
        return loops, inner
    merged, replaced = [], {}
    for group in groups:
        if len(group) == 1:
            merged.append(loops[group[0]])
            continue
        extent = 1
        for position in group:
            extent *= loops[position].extent
        variable = tirx.Var("c", "int32")
        analyzer.bind(variable, tirx_range(extent))
        merged.append(Loop(variable, extent))
        for position in group[:-1]:
            replaced[loops[position].variable] = tirx.IntImm("int32", 0)
        replaced[loops[group[-1]].variable] = variable
    return merged, _Flattened(replaced, analyzer).visit_stmt(inner)


def _uses_as_values(statement: Any, loops: Sequence[Loop]) -> bool:
    """Is a loop's variable used outside of indices?"""
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or (isinstance(node, tirx.Var) and any(node.same_as(loop.variable) for loop in loops))

    tirx.stmt_functor.post_order_visit(_WithoutIndices().visit_stmt(statement), visit)
    return found


@tirx.functor.mutator
class _WithoutIndices(tirx.PyStmtExprMutator):   # type: ignore
    def visit_buffer_load_(self, op: Any) -> Any:
        return tirx.BufferLoad(op.buffer, [0] * len(op.indices))

    def visit_buffer_store_(self, op: Any) -> Any:
        return tirx.BufferStore(op.buffer, self.visit_expr(op.value), [0] * len(op.indices))


@tirx.functor.mutator
class _Flattened(tirx.PyStmtExprMutator):   # type: ignore
    """Every access as one of a flat buffer, with loops replaced."""

    def __init__(self, replaced: dict[Any, Any], analyzer: Any) -> None:
        super().__init__()
        self.replaced, self.analyzer = replaced, analyzer
        self.views: dict[tuple[Any, str, int], Any] = {}

    def _place(self, node: Any) -> tuple[Any, list[Any]]:
        if is_global(node.buffer):
            raise NoSimd(f"{node.buffer.name} is in global memory")
        key = (node.buffer.data, str(node.buffer.dtype), dense_strides(node.buffer)[0] * int(node.buffer.shape[0]))
        view = self.views.get(key)   # reshaped views of one memory are one buffer: equal places are equal expressions
        if view is None:
            view = self.views[key] = flat_view(node.buffer)
        linear: Any = tirx.IntImm("int32", 0)
        for index, stride in zip(node.indices, dense_strides(node.buffer), strict=True):
            linear = linear + index * stride
        return view, [self.analyzer.simplify(tirx.stmt_functor.substitute(linear, self.replaced))]

    def visit_buffer_load_(self, op: Any) -> Any:
        view, place = self._place(op)
        return tirx.BufferLoad(view, place)

    def visit_buffer_store_(self, op: Any) -> Any:
        view, place = self._place(op)
        return tirx.BufferStore(view, self.visit_expr(op.value), place)


def _over_registers(loops: list[Loop], vector: int, inner: Any, analyzer: Any,
                    is_uniform: Callable[[Any], bool]) -> list[Any]:
    extent = loops[vector].extent
    whole, rest = extent // LANES, extent % LANES
    made: list[Any] = []
    if whole:
        chunk = tirx.Var("chunk", "int32")
        first = chunk * LANES if whole > 1 else tirx.IntImm("int32", 0)
        body = _turn(loops, vector, inner, analyzer, is_uniform, first, LANES)
        made.append(tirx.For(chunk, 0, whole, tirx.ForKind.SERIAL, sequence(body)) if whole > 1 else sequence(body))
    if rest:
        made.append(sequence(_turn(loops, vector, inner, analyzer, is_uniform,
                                   tirx.IntImm("int32", whole * LANES), rest)))
    statement = sequence(made)
    for position in reversed(range(len(loops))):
        if position != vector:
            statement = tirx.For(loops[position].variable, 0, loops[position].extent, tirx.ForKind.SERIAL, statement)
    return [statement]


def mask_of(count: int) -> tuple[Any, Any]:
    """(a variable, its binding): the predicate of the first ``count`` lanes."""
    variable = tirx.Var("mask", "boolx256")
    node = simd("pset", "boolx256", 32, ALL_LANES) if count == LANES else simd(
        "update_mask", "boolx256", tirx.const(count, "uint32"), 32)
    return variable, tirx.Bind(variable, node)


def _turn(loops: list[Loop], vector: int, inner: Any, analyzer: Any, is_uniform: Callable[[Any], bool], first: Any,
          count: int) -> list[Any]:
    mask, binding = mask_of(count)
    body = Body(loops, vector, mask, analyzer, is_uniform, [binding])
    for statement in flat(inner):
        _statement(body, statement, mask)
    at = {loops[vector].variable: first}
    return [tirx.stmt_functor.substitute(each, at) for each in body.statements]


def _statement(body: Body, statement: Any, mask: Any) -> None:
    if isinstance(statement, tirx.Bind):
        body.bound[statement.var] = body.value(statement.value)
    elif isinstance(statement, tirx.BufferStore):
        body.store(statement, mask)
    elif isinstance(statement, tirx.IfThenElse) and statement.else_case is None:
        chosen = body.as_predicate(body.value(statement.condition))
        both = body.predicate("pand", chosen, mask, body.mask).node
        if any(isinstance(part, tirx.Bind) for part in flat(statement.then_case)):
            raise NoSimd("a value that only some lanes have")
        for part in flat(statement.then_case):
            _statement(body, part, both)
    else:
        raise NoSimd(f"{type(statement).__name__} inside a T.Parallel")


# ---------------------------------------------------------------------- reductions
def lower_reduce(call: Any, number: int) -> tuple[list[Any], list[Any]]:
    """(statements, registers to allocate) of a T.reduce over whole buffers. Raises NoSimd."""
    source, target = Region(call.args[0]), Region(call.args[1])
    operation, axis, clear = str(call.args[2].value), int(call.args[3]), bool(call.args[4])
    dtype = str(source.buffer.dtype)
    fold, absolute = operation.removeprefix("abs"), operation.startswith("abs")
    if fold not in _FOLD or dtype not in ("float32", "int32") or str(target.buffer.dtype) != dtype:
        raise NoSimd(f"a reduction by {operation} of {dtype}")
    if not clear:
        raise NoSimd("a reduction onto what is there")
    shape = [int(e) for e in source.buffer.shape]
    if [int(e) for e in source.extents] != shape or [int(e) for e in target.extents] != [
            int(e) for e in target.buffer.shape]:
        raise NoSimd("a reduction of a part of a buffer")
    outer, depth, inner = 1, shape[axis], 1
    for extent in shape[:axis]:
        outer *= extent
    for extent in shape[axis + 1:]:
        inner *= extent
    made = _Reduction(flat_view(source.buffer), flat_view(target.buffer), dtype, fold, absolute, outer, depth, inner,
                      number)
    return (made.down() if inner > 1 else made.across()), made.registers


class _Reduction:
    """``target[o, i]`` = fold over d of ``source[o, d, i]``."""

    def __init__(self, source: Any, target: Any, dtype: str, fold: str, absolute: bool, outer: int, depth: int,
                 inner: int, number: int) -> None:
        self.source, self.target, self.dtype, self.fold, self.absolute = source, target, dtype, fold, absolute
        self.outer, self.depth, self.inner = outer, depth, inner
        self.total = tirx.decl_buffer((1,), lanes(dtype), f"total_{number}", scope="local.var")
        self.registers = [self.total]
        self.statements: list[Any] = []

    def _load(self, at: Any, mask: Any, statements: list[Any]) -> Any:
        variable = tirx.Var("x", lanes(self.dtype))
        pointer = pointer_to(tirx.BufferLoad(self.source, [at]), LANES, READ)
        statements.append(tirx.Bind(variable, simd("vld", lanes(self.dtype), pointer, "NORM")))
        if self.absolute:
            size = tirx.Var("size", lanes(self.dtype))
            statements.append(tirx.Bind(size, simd("vabs", lanes(self.dtype), variable, mask, "MODE_ZEROING")))
            return size
        return variable

    def _folded(self, value: Any, mask: Any) -> Any:
        zero = [tirx.IntImm("int32", 0)]
        node = simd(_FOLD[self.fold], lanes(self.dtype), tirx.BufferLoad(self.total, zero), value, mask, "MODE_ZEROING")
        return tirx.BufferStore(self.total, node, zero)

    def down(self) -> list[Any]:
        """Over an axis that is not the last: lanes are neighbours along the last, in ascending order of the axis."""
        self._on_blocks(self.inner)
        o = tirx.Var("o", "int32")
        made = []
        for first, count, turns in _chunks(self.inner):
            chunk = tirx.Var("chunk", "int32")
            at = chunk * LANES + first if turns > 1 else tirx.IntImm("int32", first)
            mask, binding = mask_of(count)
            body: list[Any] = [binding]
            zero = [tirx.IntImm("int32", 0)]
            begin = 0
            if self.fold == "sum":   # from zero, as threads do: a sum of -0 is +0
                nothing = simd("vdup", lanes(self.dtype), tirx.const(0, self.dtype), mask, "MODE_ZEROING")
                body.append(tirx.BufferStore(self.total, nothing, zero))
            else:
                begin = 1
                body.append(tirx.BufferStore(self.total, self._load(o * (self.depth * self.inner) + at, mask, body),
                                             zero))
            if self.depth > begin:
                d = tirx.Var("d", "int32")
                turn: list[Any] = []
                value = self._load(o * (self.depth * self.inner) + (d + begin) * self.inner + at, mask, turn)
                turn.append(self._folded(value, mask))
                body.append(tirx.For(d, 0, self.depth - begin, tirx.ForKind.SERIAL, sequence(turn)))
            pointer = pointer_to(tirx.BufferLoad(self.target, [o * self.inner + at]), LANES, WRITE)
            body.append(tirx.Evaluate(simd("vsts", "void", pointer, tirx.BufferLoad(self.total, zero), mask,
                                           "NORM_B32")))
            statement = sequence(body)
            made.append(tirx.For(chunk, 0, turns, tirx.ForKind.SERIAL, statement) if turns > 1 else statement)
        return [tirx.For(o, 0, self.outer, tirx.ForKind.SERIAL, sequence(made))]

    def across(self) -> list[Any]:
        """Over the last axis: registers fold into one, whose lanes fold into its first."""
        if self.fold not in _ACROSS:
            raise NoSimd("a sum along the last axis: the order in which lanes are added is not documented")
        self._on_blocks(self.depth)
        o = tirx.Var("o", "int32")
        zero = [tirx.IntImm("int32", 0)]
        body: list[Any] = []
        for position, (first, count, turns) in enumerate(_chunks(self.depth)):
            mask, binding = mask_of(count)
            body.append(binding)
            if position == 0:
                kept = mask
                body.append(tirx.BufferStore(self.total, self._load(o * self.depth + first, mask, body), zero))
                if turns > 1:
                    d = tirx.Var("d", "int32")
                    turn: list[Any] = []
                    value = self._load(o * self.depth + (d + 1) * LANES, mask, turn)
                    turn.append(self._folded(value, mask))
                    body.append(tirx.For(d, 0, turns - 1, tirx.ForKind.SERIAL, sequence(turn)))
            else:   # lanes beyond the tail keep what they have
                value = self._load(o * self.depth + first, mask, body)
                both = simd(_FOLD[self.fold], lanes(self.dtype), tirx.BufferLoad(self.total, zero), value, mask,
                            "MODE_ZEROING")
                folded = tirx.Var("folded", lanes(self.dtype))
                body.append(tirx.Bind(folded, both))
                body.append(tirx.BufferStore(self.total, simd("vsel", lanes(self.dtype), folded,
                                                              tirx.BufferLoad(self.total, zero), mask), zero))
        one = tirx.Var("one", lanes(self.dtype))
        body.append(tirx.Bind(one, simd(_ACROSS[self.fold], lanes(self.dtype), tirx.BufferLoad(self.total, zero), kept,
                                        "MODE_ZEROING")))
        pointer = pointer_to(tirx.BufferLoad(self.target, [o]), 1, WRITE)
        body.append(tirx.Evaluate(simd("vsts", "void", pointer, one, kept, "ONEPT_B32")))
        return [tirx.For(o, 0, self.outer, tirx.ForKind.SERIAL, sequence(body))]

    def _on_blocks(self, pitch: int) -> None:
        if pitch % 8 and self.outer * self.depth * self.inner != pitch:
            raise NoSimd(f"rows of {pitch} elements do not start on 32 bytes")


def _chunks(extent: int) -> list[tuple[int, int, int]]:
    """(first element, lanes, registers) of the whole registers, and of the rest."""
    whole, rest = extent // LANES, extent % LANES
    return ([(0, LANES, whole)] if whole else []) + ([(whole * LANES, rest, 1)] if rest else [])


__all__ = ["lower_nest", "lower_reduce", "nested", "on_block"]
