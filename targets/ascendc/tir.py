"""What the passes ask of TIR: lists of statements, copies and their regions, what a statement reads and writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilelang import tvm

tirx = tvm.tirx
LOCAL = ("local.fragment", "local", "local.var", "local.reducer")   # registers: one copy a thread, or spread over them
COPY, DMA, FILL, REGION = (tirx.op.Op.get(f"tl.{name}") for name in (
    "tileop.copy", "tileop.ascend_copy", "tileop.fill", "region"))
_WRITES_ARGUMENT = ("tl.access_ptr", "tirx.address_of", "tl.atomic_add_elem_op")
BLOCK_BYTES = 32     # of UB, the unit of DMA
READ, WRITE = 1, 2   # of a region's access mask


class Refused(Exception):
    """A statement that this backend does not take. ``statement`` is the TIR node, for its source line."""

    def __init__(self, reason: str, statement: Any = None) -> None:
        super().__init__(reason)
        self.statement = statement


def flat(statement: Any) -> list[Any]:
    """The statements of a sequence, one after another."""
    if isinstance(statement, tirx.SeqStmt):
        return [each for part in statement.seq for each in flat(part)]
    return [statement]


def sequence(statements: Sequence[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def is_call(statement: Any, op: Any) -> bool:
    return isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.Call) \
        and statement.value.op.same_as(op)


def is_local(buffer: Any) -> bool:
    return str(buffer.scope()) in LOCAL


def is_global(buffer: Any) -> bool:
    return str(buffer.scope()) == "global"


def item_bytes(buffer: Any) -> int:
    return int(tvm.DataType(buffer.dtype).bits) // 8


def buffer_bytes(buffer: Any) -> int:
    return math.prod(int(extent) for extent in buffer.shape) * item_bytes(buffer)


@dataclass(frozen=True)
class Region:
    """A box of a buffer: first indices and extents."""

    call: Any

    @property
    def buffer(self) -> Any:
        return self.call.args[0].buffer

    @property
    def first(self) -> list[Any]:
        return list(self.call.args[0].indices)

    @property
    def extents(self) -> list[Any]:
        return list(self.call.args[2:])

    @property
    def sizes(self) -> list[int]:
        """The extents as numbers. Raises Refused where one is not."""
        if not all(isinstance(extent, tirx.IntImm) for extent in self.extents):
            raise Refused(f"a region of {self.buffer.name} whose extents are not numbers")
        return [int(extent) for extent in self.extents]


def fits_dma(box: Region) -> bool:
    """Is every row a multiple of 32 bytes, so that rows follow each other in UB? A single one may have any length."""
    if not all(isinstance(extent, tirx.IntImm) for extent in box.extents):
        return False
    sizes = box.sizes
    return math.prod(sizes[:-1]) == 1 or sizes[-1] * item_bytes(box.buffer) % BLOCK_BYTES == 0


def flat_view(buffer: Any, dtype: str | None = None) -> Any:
    """The buffer's memory as one run of elements, of ``dtype`` where it is not the buffer's own."""
    if len(buffer.shape) == 1 and dtype is None:
        return buffer
    total = product(buffer.shape)
    if dtype is not None:
        total = total * item_bytes(buffer) * 8 // int(tvm.DataType(dtype).bits)
    return tirx.decl_buffer((total,), dtype or buffer.dtype, buffer.name, data=buffer.data, scope=buffer.scope())


def as_one_run(box: Region) -> Region | None:
    """A box whose elements follow each other in memory, as a box of one dimension; None where they do not."""
    shape, first = list(box.buffer.shape), box.first
    wide = [d for d, extent in enumerate(box.extents) if not (isinstance(extent, tirx.IntImm) and int(extent) == 1)]
    if not all(isinstance(extent, tirx.IntImm) for extent in [*box.extents, *shape[1:]]):
        return None
    dense = [math.prod(int(size) for size in shape[d + 1:]) for d in range(len(shape))]
    if not all(isinstance(stride, tirx.IntImm) and int(stride) == want
               for stride, want in zip(box.buffer.strides, dense)):   # none are given where they are these
        return None
    if not wide or not all(isinstance(first[d], tirx.IntImm) and int(first[d]) == 0
                           and int(box.extents[d]) == int(shape[d]) for d in range(wide[0] + 1, len(shape))):
        return None
    start: Any = 0
    for position, size in zip(first, shape):
        start = start * size + position
    place = tirx.BufferLoad(flat_view(box.buffer), [start])
    return Region(tirx.call_intrin("handle", REGION, place, box.call.args[1], math.prod(box.sizes)))


def region(buffer: Any, mask: int) -> Any:
    """The whole of a buffer, as an argument of a copy."""
    first = tirx.BufferLoad(buffer, [0] * len(buffer.shape))
    return tirx.call_intrin("handle", REGION, first, mask, *buffer.shape)


def copy(source: Any, target: Any) -> Any:
    return tirx.Evaluate(tirx.call_intrin("handle", COPY, source, target))


def source_and_target(statement: Any) -> tuple[Region, Region]:
    return Region(statement.value.args[0]), Region(statement.value.args[1])


@dataclass(frozen=True)
class Accesses:
    """Buffers by their data variable, and every variable, that a statement mentions."""

    reads: dict[Any, Any]
    writes: dict[Any, Any]
    variables: frozenset[Any]

    def conflicts(self, later: Accesses) -> bool:
        """Must the other stay after this one?"""
        return bool(set(self.writes) & (set(later.reads) | set(later.writes)) or set(self.reads) & set(later.writes))


def accesses(statements: Any) -> Accesses:
    """What statements touch. A region says itself whether it is read or written; an address counts as a write."""
    reads: dict[Any, Any] = {}
    writes: dict[Any, Any] = {}
    variables: set[Any] = set()
    in_regions: set[int] = set()

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Call) and node.op.same_as(REGION):
            buffer, mask = node.args[0].buffer, int(node.args[1])
            in_regions.add(hash(node.args[0]))
            if mask & READ:
                reads[buffer.data] = buffer
            if mask & WRITE:
                writes[buffer.data] = buffer
        elif isinstance(node, tirx.BufferStore):
            writes[node.buffer.data] = node.buffer
        elif isinstance(node, tirx.BufferLoad):
            loads.append(node)
        elif isinstance(node, tirx.Call) and node.op.name in _WRITES_ARGUMENT:
            if isinstance(node.args[0], tirx.BufferLoad):
                writes[node.args[0].buffer.data] = node.args[0].buffer
        elif isinstance(node, tirx.Var):
            variables.add(node)

    loads: list[Any] = []
    for statement in statements if isinstance(statements, list) else [statements]:
        tirx.stmt_functor.post_order_visit(statement, visit)
    for load in loads:
        if hash(load) not in in_regions:
            reads[load.buffer.data] = load.buffer
    return Accesses(reads, writes, frozenset(variables))


def nested(node: Any, body: Any) -> Any:
    """A loop with another body."""
    return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, node.annotations)


def is_serial(node: Any) -> bool:
    return isinstance(node, tirx.For) and node.kind != tirx.ForKind.PARALLEL


def branches(node: Any) -> Iterator[Any]:
    yield node.then_case
    if node.else_case is not None:
        yield node.else_case


@tirx.functor.mutator
class _Renamed(tirx.PyStmtExprMutator):   # type: ignore
    def __init__(self, names: dict[Any, Any]) -> None:
        super().__init__()
        self.names = {old.data: new for old, new in names.items()}

    def visit_buffer_load_(self, op: Any) -> Any:
        return tirx.BufferLoad(self._new(op), [self.visit_expr(i) for i in op.indices])

    def visit_buffer_store_(self, op: Any) -> Any:
        return tirx.BufferStore(self._new(op), self.visit_expr(op.value), [self.visit_expr(i) for i in op.indices])

    def _new(self, op: Any) -> Any:
        new = self.names.get(op.buffer.data)
        if new is None or list(op.buffer.shape) == list(new.shape):
            return op.buffer if new is None else new
        # a reshaped view: the same memory under other sizes
        return tirx.decl_buffer(op.buffer.shape, new.dtype, op.buffer.name, data=new.data, scope=new.scope())


def renamed(statements: Sequence[Any], names: dict[Any, Any]) -> list[Any]:
    """The statements on other buffers; reshaped views follow."""
    return flat(_Renamed(names).visit_stmt(sequence(list(statements)))) if names else list(statements)


def product(factors: Iterable[Any]) -> Any:
    total: Any = None
    for factor in factors:
        total = factor if total is None else total * factor
    return total
