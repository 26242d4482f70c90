"""Which unit does what: DMA and the scalar core outside, everything else in regions of vector functions.

A vector function (VF) is called by the scalar core and runs on the vector unit's threads. Each call costs, and what
registers hold ends with it, so regions are merged: loads and index arithmetic move up over a region, stores move down
below the next, wherever nothing depends on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monotile.targets.ascendc.tir import (
    COPY,
    DMA,
    Accesses,
    accesses,
    branches,
    fits_dma,
    flat,
    is_call,
    is_global,
    is_local,
    is_serial,
    nested,
    sequence,
    source_and_target,
    tirx,
)


@dataclass
class Vector:
    """A region that becomes one vector function."""

    statements: list[Any]
    before: list[Any] = field(default_factory=list)   # reloads of spilled registers
    after: list[Any] = field(default_factory=list)
    simd: bool = False
    why: str = ""                                     # it is not SIMD

    def accesses(self) -> Accesses:
        return accesses(self.statements)


@dataclass
class Outside:
    """A statement of the scalar core: DMA, a number that all threads share."""

    statement: Any
    is_dma: bool


@dataclass
class Nest:
    """A loop or branch of the scalar core that has DMA inside."""

    node: Any
    parts: list[list[Part]]


Part = Vector | Outside | Nest


class Regions:
    """Divides statements. ``locals_`` are the register buffers by data variable."""

    def __init__(self, locals_: dict[Any, Any], use_dma: bool) -> None:
        self.locals, self.use_dma = locals_, use_dma
        self.scalars: set[Any] = set()     # local.var of the scalar core
        self.varying: set[Any] = set()     # variables bound to what threads do not share

    # ------------------------------------------------------------------ what the scalar core may do
    def find_scalars(self, statements: Sequence[Any]) -> None:
        """A local.var that only statements at the top write, with values that threads share, is the scalar core's."""
        found = {data for data, buffer in self.locals.items() if str(buffer.scope()) == "local.var"}
        top = [s for s in statements if isinstance(s, tirx.BufferStore)]
        for statement in statements:
            if not isinstance(statement, tirx.BufferStore):
                found -= set(accesses(statement).writes)
        while True:
            self.scalars = set(found)
            refused = {s.buffer.data for s in top if s.buffer.data in found and not self.is_uniform(s.value)}
            if not refused:
                return
            found -= refused

    def is_uniform(self, expression: Any) -> bool:
        """Is it the same for all threads, and can the scalar core compute it?"""
        seen = accesses(tirx.Evaluate(expression))
        return not (set(seen.reads) & set(self.locals)) - self.scalars \
            and not seen.variables & self.varying \
            and all(is_global(b) or b.data in self.scalars for b in seen.reads.values())

    def is_dma(self, statement: Any) -> bool:
        if not self.use_dma or not is_call(statement, COPY):
            return False
        source, target = source_and_target(statement)
        near, far = (target, source) if is_global(source.buffer) else (source, target)
        return is_global(far.buffer) and not is_global(near.buffer) and not is_local(near.buffer) \
            and source.buffer.dtype == target.buffer.dtype and fits_dma(far)

    def _has_dma(self, statement: Any) -> bool:
        found = [False]

        def visit(node: Any) -> None:
            found[0] = found[0] or self.is_dma(node)

        tirx.stmt_functor.post_order_visit(statement, visit)
        return found[0]

    # ------------------------------------------------------------------ division
    def divide(self, statements: Sequence[Any]) -> list[Part]:
        return _merged([self._part(statement) for statement in statements])

    def _part(self, statement: Any) -> Part:
        if self.is_dma(statement):
            call = statement.value
            return Outside(tirx.Evaluate(tirx.Call("handle", DMA, call.args, call.annotations)), is_dma=True)
        if isinstance(statement, tirx.Bind):
            if self.is_uniform(statement.value):
                return Outside(statement, is_dma=False)
            self.varying.add(statement.var)
        elif isinstance(statement, tirx.BufferStore) and statement.buffer.data in self.scalars:
            return Outside(statement, is_dma=False)
        elif is_serial(statement) and self._has_dma(statement) and self.is_uniform(statement.extent):
            return _whole(Nest(statement, [self.divide(flat(statement.body))]))
        elif isinstance(statement, tirx.IfThenElse) and self._has_dma(statement) \
                and self.is_uniform(statement.condition):
            return _whole(Nest(statement, [self.divide(flat(case)) for case in branches(statement)]))
        return Vector([statement])


def _whole(nest: Nest) -> Part:
    """A nest that holds nothing but DMA is moved about like one."""
    if vectors([nest]) or not _all_dma(nest):
        return nest
    (statement,) = rebuilt([nest], lambda _: None)
    return Outside(statement, is_dma=True)


def _all_dma(nest: Nest) -> bool:
    return all(part.is_dma if isinstance(part, Outside) else isinstance(part, Nest) and _all_dma(part)
               for inner in nest.parts for part in inner)


def _merged(parts: list[Part]) -> list[Part]:
    """Fewer regions, by the moves described above, until none applies."""
    while _step(parts):
        pass
    return parts


def _step(parts: list[Part]) -> bool:
    for i in range(len(parts) - 1):
        here, following = parts[i], parts[i + 1]
        if not isinstance(here, Vector):
            continue
        if isinstance(following, Vector):
            parts[i:i + 2] = [Vector(here.statements + following.statements)]
            return True
        if not isinstance(following, Outside) or not any(isinstance(p, Vector) for p in parts[i + 2:]):
            continue
        of_here, of_following = here.accesses(), accesses(following.statement)
        defined = {s.var for s in here.statements if isinstance(s, tirx.Bind)}
        if not of_here.conflicts(of_following) and not defined & of_following.variables:
            parts[i:i + 2] = [following, here]
            return True
        if not following.is_dma or i + 2 >= len(parts):
            continue
        third = parts[i + 2]
        if isinstance(third, Vector) and not of_following.conflicts(third.accesses()):
            parts[i:i + 3] = [Vector(here.statements + third.statements), following]
            return True
        if isinstance(third, Outside) and third.is_dma:
            of_third = accesses(third.statement)
            if not of_following.conflicts(of_third) and not of_here.conflicts(of_third):
                parts[i:i + 3] = [third, here, following]   # the next load overtakes this store
                return True
    return False


def specialised(parts: Sequence[Part], refusal: Callable[[list[Any]], str | None]) -> list[Part]:
    """Regions as SIMD where they can be: whole, or the runs of their statements that can.

    ``refusal(statements)`` says why statements are not SIMD; None where they are.
    """
    made: list[Part] = []
    for part in parts:
        if isinstance(part, Nest):
            made.append(Nest(part.node, [specialised(inner, refusal) for inner in part.parts]))
        elif isinstance(part, Vector):
            made += _runs(part.statements, refusal)
        else:
            made.append(part)
    return made


def _runs(statements: list[Any], refusal: Callable[[list[Any]], str | None]) -> list[Part]:
    runs: list[Vector] = []
    for statement in statements:
        why = refusal([statement])
        simd = why is None
        if isinstance(statement, tirx.Bind):   # a name belongs to what uses it
            return [_whole_region(statements, refusal)]
        if runs and runs[-1].simd is simd:
            runs[-1].statements.append(statement)
        else:
            runs.append(Vector([statement], simd=simd, why=why or ""))
    return list(runs)


def _whole_region(statements: list[Any], refusal: Callable[[list[Any]], str | None]) -> Vector:
    why = refusal(statements)
    return Vector(statements, simd=why is None, why=why or "")


def vectors(parts: Sequence[Part]) -> list[Vector]:
    """Every region, in order."""
    found: list[Vector] = []
    for part in parts:
        if isinstance(part, Vector):
            found.append(part)
        elif isinstance(part, Nest):
            found += [each for inner in part.parts for each in vectors(inner)]
    return found


def rebuilt(parts: Sequence[Part], of_vector: Callable[[Vector], Any]) -> list[Any]:
    """The parts as statements again."""
    made: list[Any] = []
    for part in parts:
        if isinstance(part, Vector):
            made.append(of_vector(part))
        elif isinstance(part, Outside):
            made.append(part.statement)
        else:
            bodies = [sequence(rebuilt(inner, of_vector)) for inner in part.parts]
            if isinstance(part.node, tirx.For):
                made.append(nested(part.node, bodies[0]))
            else:
                made.append(tirx.IfThenElse(part.node.condition, *bodies, *([None] * (2 - len(bodies)))))
    return made
