"""A region of a kernel as one SIMD function: its statements in order, barriers between those that depend.

Loads and stores of vector registers are not kept in order by the unit: where a statement reads what an earlier one
wrote, or writes what an earlier one read or wrote, a barrier stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monotile.targets.ascendc.simd.addresses import NoSimd
from monotile.targets.ascendc.simd.expressions import simd
from monotile.targets.ascendc.simd.nests import lower_nest, lower_reduce
from monotile.targets.ascendc.tir import (
    COPY,
    FILL,
    Region,
    accesses,
    branches,
    flat,
    is_call,
    is_global,
    is_serial,
    nested,
    sequence,
    source_and_target,
    tirx,
)

REDUCE = tirx.op.Op.get("tl.tileop.reduce")


class _Lowering:
    def __init__(self, is_uniform: Callable[[Any], bool]) -> None:
        self.is_uniform = is_uniform
        self.registers: list[Any] = []
        # buffers touched since the last barrier that orders what follows after it
        self.pending: dict[str, set[Any]] = {"VST_VLD": set(), "VST_VST": set(), "VLD_VST": set()}

    def run(self, statements: Sequence[Any]) -> list[Any]:
        return [each for statement in statements for each in self._statement(statement)]

    def _statement(self, statement: Any) -> list[Any]:
        if is_serial(statement):
            if not self.is_uniform(statement.extent):
                raise NoSimd("a loop whose extent differs between lanes")
            before = self._copy()   # should there be no turn
            inside = accesses(statement)   # what one turn does, the turn before has done
            self._touch(set(inside.reads), set(inside.writes))
            body = self.run(flat(statement.body))
            self._join([before])
            return [nested(statement, sequence(body))]
        if isinstance(statement, tirx.IfThenElse):
            if not self.is_uniform(statement.condition):
                raise NoSimd("a branch that differs between lanes")
            before, cases = self._copy(), []   # a barrier in one branch orders nothing after another
            after = [before]
            for case in branches(statement):
                self.pending = {kind: set(buffers) for kind, buffers in before.items()}
                cases.append(sequence(self.run(flat(case))))
                after.append(self.pending)
            self._join(after)
            return [tirx.IfThenElse(statement.condition, *cases, *([None] * (2 - len(cases))))]
        if isinstance(statement, tirx.Bind) and self.is_uniform(statement.value):
            return [statement]
        return [*self._barriers(statement), *self._vector(statement)]

    def _vector(self, statement: Any) -> list[Any]:
        if isinstance(statement, tirx.For):
            return lower_nest(statement, self.is_uniform)
        if is_call(statement, COPY):
            return lower_nest(_copied(*source_and_target(statement)), self.is_uniform)
        if is_call(statement, FILL):
            region = Region(statement.value.args[0])
            return lower_nest(_filled(region, statement.value.args[1]), self.is_uniform)
        if is_call(statement, REDUCE):
            made, registers = lower_reduce(statement.value, len(self.registers))
            self.registers += registers
            return made
        raise NoSimd(f"{type(statement).__name__} at the top of a region")

    def _barriers(self, statement: Any) -> list[Any]:
        seen = accesses(statement)
        for buffer in {**seen.reads, **seen.writes}.values():
            if is_global(buffer):
                raise NoSimd(f"{buffer.name} is in global memory")
        reads, writes = set(seen.reads), set(seen.writes)
        kinds = [kind for kind, later in (("VST_VLD", reads), ("VST_VST", writes), ("VLD_VST", writes))
                 if self.pending[kind] & later]
        for kind in kinds:
            self.pending[kind] = set()
        self._touch(reads, writes)
        return [tirx.Evaluate(simd("mem_bar", "void", kind)) for kind in kinds]

    def _copy(self) -> dict[str, set[Any]]:
        return {kind: set(buffers) for kind, buffers in self.pending.items()}

    def _join(self, others: Sequence[dict[str, set[Any]]]) -> None:
        """What is pending on any of the ways that lead here."""
        self.pending = {kind: set().union(buffers, *(each[kind] for each in others))
                        for kind, buffers in self.pending.items()}

    def _touch(self, reads: set[Any], writes: set[Any]) -> None:
        self.pending["VST_VLD"] |= writes
        self.pending["VST_VST"] |= writes
        self.pending["VLD_VST"] |= reads


def _nest(sizes: Sequence[Any], body: Callable[[list[Any]], Any]) -> Any:
    if not all(isinstance(size, (int, tirx.IntImm)) for size in sizes):
        raise NoSimd("a region whose extents are no numbers")
    variables = [tirx.Var(f"e{axis}", "int32") for axis in range(len(sizes))]
    statement = body(variables)
    for variable, size in reversed(list(zip(variables, sizes))):
        statement = tirx.For(variable, 0, size, tirx.ForKind.PARALLEL, statement)
    return statement


def _copied(source: Region, target: Region) -> Any:
    wide = [[axis for axis, extent in enumerate(box.extents) if not (isinstance(extent, tirx.IntImm)
                                                                    and int(extent) == 1)] for box in (source, target)]
    if [int(source.extents[a]) for a in wide[0]] != [int(target.extents[a]) for a in wide[1]]:
        raise NoSimd("a copy between boxes of two shapes")

    def body(variables: list[Any]) -> Any:
        places = []
        for box, axes in ((source, wide[0]), (target, wide[1])):
            place = box.first
            for axis, variable in zip(axes, variables):
                place[axis] = place[axis] + variable
            places.append(place)
        value: Any = tirx.BufferLoad(source.buffer, places[0])
        if source.buffer.dtype != target.buffer.dtype:
            value = tirx.Cast(str(target.buffer.dtype), value)
        return tirx.BufferStore(target.buffer, value, places[1])

    return _nest([source.extents[axis] for axis in wide[0]] or [1], body)


def _filled(region: Region, value: Any) -> Any:
    def body(variables: list[Any]) -> Any:
        return tirx.BufferStore(region.buffer, tirx.Cast(str(region.buffer.dtype), value) if str(
            value.dtype) != str(region.buffer.dtype) else value,
            [first + variable for first, variable in zip(region.first, variables)])

    return _nest(region.extents, body)


def simd_statements(statements: Sequence[Any], is_uniform: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """(statements of a SIMD function, its registers). Every buffer must be in UB. Raises NoSimd."""
    lowering = _Lowering(is_uniform)
    made = lowering.run(statements)
    return made, lowering.registers


def simd_block(statements: Sequence[Any], registers: Sequence[Any], number: int) -> Any:
    """The block that TileLang's Ascend backend turns into a SIMD function."""
    body = tirx.AttrStmt(tirx.StringImm("simdvf"), "tl.simdvf_scope", 1, sequence(list(statements)))
    return tirx.SBlock([], [], [], "SIMD_VF", body, None, list(registers), [],
                       {"tl.vf_source_index": tirx.IntImm("int64", number)})
