"""Where registers live: inside the vector function that uses them, or in UB between two.

A register buffer that is allocated outside of a vector function would silently be one array that all threads share, so
none stays there. One that two functions use is written to UB at the end of the one and read at the beginning of the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monotile.targets.ascendc.regions import Part, Vector, vectors
from monotile.targets.ascendc.simd import simd_block, simd_statements
from monotile.targets.ascendc.tir import (
    COPY,
    FILL,
    READ,
    WRITE,
    Refused,
    Region,
    accesses,
    copy,
    flat,
    is_call,
    region,
    renamed,
    sequence,
    tirx,
    tvm,
)

_SOURCE_INDEX = "tl.vf_source_index"


def _begins_by_filling(statements: Sequence[Any], buffer: Any) -> bool:
    """Is the first thing that happens to a register buffer that all of it is written?"""
    first = next(s for s in statements if buffer.data in (seen := accesses(s)).reads or buffer.data in seen.writes)
    if buffer.data in accesses(first).reads:
        return False
    if is_call(first, COPY) or is_call(first, FILL):
        target = Region(first.value.args[1 if is_call(first, COPY) else 0])
        return [*map(int, target.sizes)] == [*map(int, target.buffer.shape)]
    axes, node = {}, first
    while isinstance(node, tirx.For):
        axes[node.loop_var] = node.extent
        node = node.body
    return any(isinstance(each, tirx.BufferStore) and each.buffer.data == buffer.data
               and all(isinstance(index, tirx.Var) and index in axes and int(axes[index]) == int(size)
                       for index, size in zip(each.indices, each.buffer.shape)) for each in flat(node))


class Placement:
    """Gives every register buffer its function. ``spilled``: new UB buffers; ``scalars`` stay on the scalar core."""

    def __init__(self, locals_: dict[Any, Any], scalars: set[Any], parts: Sequence[Part],
                 is_uniform: Callable[[Any], bool]) -> None:
        regions = vectors(parts)
        self._is_uniform = is_uniform
        self.spilled: list[Any] = []
        self.outside: list[Any] = []       # buffers of the scalar core, and those that nothing uses
        self._inside: dict[int, list[Any]] = {id(each): [] for each in regions}
        uses: dict[Any, list[Vector]] = {}
        touched = {id(each): each.accesses() for each in regions}
        for each in regions:
            seen = touched[id(each)]
            for data in {*seen.reads, *seen.writes} & set(locals_):
                uses.setdefault(data, []).append(each)
        for data, buffer in locals_.items():
            users = uses.get(data, [])
            if data in scalars or not users:
                self.outside.append(buffer)
            elif len(users) == 1 and not users[0].simd:
                self._inside[id(users[0])].append(buffer)
            else:
                self._spill(buffer, users, touched)

    def _spill(self, buffer: Any, users: list[Vector], touched: dict[int, Any]) -> None:
        if str(buffer.scope()) != "local.fragment":
            raise Refused(f"{buffer.name} ({buffer.scope()}) is used in two vector functions; make it a fragment")
        kept = tirx.decl_buffer(buffer.shape, buffer.dtype, f"{buffer.name}_kept", scope="shared.dyn")
        self.spilled.append(kept)
        for position, user in enumerate(users):
            if user.simd:   # works on it where it is
                user.statements = renamed(user.statements, {buffer: kept})
                continue
            own = tirx.decl_buffer(buffer.shape, buffer.dtype, f"{buffer.name}_{position}", scope="local.fragment")
            self._inside[id(user)].append(own)
            user.statements = renamed(user.statements, {buffer: own})
            seen = touched[id(user)]
            if not _begins_by_filling(user.statements, own):
                user.before.append(copy(region(kept, READ), region(own, WRITE)))
            if buffer.data in seen.writes:
                user.after.append(copy(region(own, READ), region(kept, WRITE)))

    def vector_function(self, each: Vector, threads: int, number: int) -> Any:
        """The block that TileLang's Ascend backend turns into a function: SIMD, or of ``threads`` SIMT threads."""
        if each.simd:
            return simd_block(*simd_statements(each.statements, self._is_uniform), number)
        body: Any = sequence([*each.before, *each.statements, *each.after])
        body = tirx.AttrStmt(tirx.StringImm("simtvf"), "tl.simtvf_scope", 1, body)
        for extent, axis in ((1, "z"), (1, "y"), (threads, "x")):
            index = tirx.IterVar(tvm.ir.Range.from_min_extent(0, extent), tirx.Var(f"thread_{axis}", "int32"),
                                 tirx.IterVar.ThreadIndex, f"threadIdx.{axis}")
            body = tirx.AttrStmt(index, "thread_extent", extent, body)
        return tirx.SBlock([], [], [], "SIMT_VF", body, None, self._inside[id(each)], [],
                           {_SOURCE_INDEX: tirx.IntImm("int64", number)})
