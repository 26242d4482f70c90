"""TileLang's PrimFunc, as its front end makes it (before any pass), to memref-level HIVM.

This module walks statements and knows the language; the parts know the machine: `scalars` the scalar unit, `vectors`
the vector unit, `transfers` the DMA, `reductions` T.reduce, `abi` the function's signature.

The grid becomes one persistent loop: block b of n takes turns b, b + n, b + 2n, ... of the flattened grid.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monotile.compat.errors import LoweringError
from monotile.targets.npuir import abi
from monotile.targets.npuir.context import (
    Context,
    Layouts,
    Misaligned,
    NeedsPeeling,
    Refused,
    Restart,
    Scalar,
)
from monotile.targets.npuir.memory import ELEMENT, Global, Offset, OnChip, View, block_elements, squeezed
from monotile.targets.npuir.reductions import Reductions
from monotile.targets.npuir.scalars import Scalars
from monotile.targets.npuir.tir import Expr, call_name, constant_int, kind, linear, loads, variables
from monotile.targets.npuir.transfers import Transfers
from monotile.targets.npuir.vectors import Vectors

_PARALLEL, _UNROLLED = 1, 3   # TIR ForKind
_UNROLL_LIMIT = 64
_MAX_LAYOUT_ROUNDS = 16


@dataclass(frozen=True)
class Emitted:
    name: str
    text: str


def emit(func: Any, chip: str, op: str, generation: str = "c220") -> Emitted:
    """Lower one PrimFunc for a chip of bishengir-compile's naming (``Ascend910B3``) and instruction set generation.

    Raises LoweringError naming the op and the statement that cannot be lowered.
    """
    layouts = Layouts()
    for _ in range(_MAX_LAYOUT_ROUNDS):
        try:
            return _Function(func, chip, op, generation, layouts).run()
        except Restart:
            continue
    raise LoweringError(op=op, target=chip, stage="emit", reason="buffer layouts do not settle")


class _Function:
    def __init__(self, func: Any, chip: str, op: str, generation: str, layouts: Layouts) -> None:
        self.func, self.chip, self.op = func, chip, op
        self.context = Context(layouts)
        self.writer = self.context.writer
        self.scalars = Scalars(self.context)
        self.transfers = Transfers(self.context, self.scalars)
        self.vectors = Vectors(self.context, self.scalars, self.transfers)
        self.reductions = Reductions(self.context, self.scalars, self.vectors, generation)
        self.current: Any = None
        self.place: tuple[str, int] | None = None   # source file and line of the current statement

    # ------------------------------------------------------------------ the function
    def run(self) -> Emitted:
        name = str(self.func.attrs["global_symbol"])
        tensors, scalar_names = self._arguments()
        try:
            self._visit(self.func.body)
        except (Refused, NeedsPeeling, Misaligned) as refused:
            line, statement = self._source()
            raise LoweringError(op=self.op, target=self.chip, stage="emit", reason=str(refused),
                                statement=statement, line=line) from refused
        self.writer.close_prologue()
        return Emitted(name, abi.module(name, self.chip, tensors, scalar_names, self.writer.text()))

    def _arguments(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Bind the parameters: flat global tensors, and their dynamic sizes and strides as i32 scalars."""
        tensors: list[tuple[str, str]] = []
        symbols: list[Any] = []
        for parameter in self.func.params:
            buffer = self.func.buffer_map[parameter]
            ssa = f"%tensor_{buffer.name}"   # a prefix, so that no name meets one of the writer's
            shape = tuple(buffer.shape)
            strides = tuple(buffer.strides) or _row_major(shape)
            self.context.memory[buffer] = Global(ssa, ELEMENT[str(buffer.dtype)], shape, strides, str(buffer.name))
            tensors.append((ssa, ELEMENT[str(buffer.dtype)]))
            for expr in [*shape, *strides]:
                if kind(expr) == "Var" and not any(expr.same_as(s) for s in symbols):
                    symbols.append(expr)
        names: list[str] = []
        for symbol in symbols:
            argument = f"%symbol{len(names)}_{symbol.name}"
            names.append(argument)
            index = self.writer.define(f"arith.index_cast {argument} : i32 to index", stem=f"{symbol.name}_index")
            self.context.environment[hash(symbol)] = Scalar(index, "index")
            self.context.bind_range(symbol, 0, 2**31 - 1)
        return tensors, names

    def _remember_place(self, node: Any) -> None:
        from tilelang.ir import get_stmt_span

        span = get_stmt_span(node)
        if span is not None:
            self.place = (str(span.source_name.name), int(span.line))

    def _source(self) -> tuple[str | None, str | None]:
        """(file:line, text) of the statement in the kernel's source; its TIR where the source is not known."""
        if self.place is None:
            return None, _one_line(self.current)
        name, number = self.place
        return f"{Path(name).name}:{number}", linecache.getline(name, number).strip() or _one_line(self.current)

    # ------------------------------------------------------------------ statements outside T.Parallel
    def _visit(self, node: Any) -> None:
        self._remember_place(node)
        name = kind(node)
        if name in ("SBlockRealize", "BlockRealize"):
            self._visit(node.block)
        elif name in ("SBlock", "Block"):
            for buffer in node.alloc_buffers:
                self._allocate(buffer)
            self._visit(node.body)
        elif name == "SeqStmt":
            for child in node.seq:
                self._visit(child)
        elif name == "AttrStmt" or name == "DeclBuffer":
            self._visit(node.body)
        elif name == "For":
            self._loop(node)
        elif name == "IfThenElse":
            self.current = node.condition
            self._branch(node, self._visit)
        elif name in ("Bind", "LetStmt"):
            self._bind(node)
            if hasattr(node, "body"):
                self._visit(node.body)
        elif name == "Evaluate":
            self._call(node.value)
        elif name == "BufferStore":
            self._statement(lambda: self._scalar_store(node), node)
        else:
            raise Refused(f"statement {name} is not lowered")

    def _allocate(self, buffer: Any) -> None:
        scope = str(buffer.scope())
        shape = tuple(self.context.static_extent(d, f"a dimension of {buffer.name}") for d in buffer.shape)
        if scope == "local.var":
            shape = (1,)
        elif not scope.startswith(("shared", "local")):
            raise Refused(f"memory scope {scope} of {buffer.name} is not lowered")
        memory = self.context.allocate(shape, str(buffer.dtype), self._label(buffer))
        self.context.memory[buffer] = memory
        self.context.by_data[hash(buffer.data)] = memory

    def _label(self, buffer: Any) -> str:
        """Buffers are told apart by name and by order of allocation, the same in every round of emission."""
        count = sum(1 for m in self.context.by_data.values() if m.label.split("#")[0] == str(buffer.name))
        return str(buffer.name) if not count else f"{buffer.name}#{count}"

    def _resolve(self, buffer: Any) -> OnChip | Global:
        """The memory of a buffer; a reshaped view shares its allocation."""
        if buffer in self.context.memory:
            return self.context.memory[buffer]
        base = self.context.by_data.get(hash(buffer.data))
        if base is None:
            raise Refused(f"buffer {buffer.name} is not allocated here")
        shape = tuple(self.context.static_extent(d, f"a dimension of {buffer.name}") for d in buffer.shape)
        if base.label in self.context.layouts.buffers:
            raise Refused(f"{base.label} is reshaped, so its rows of {base.shape[-1]} {base.element} cannot be "
                          "padded to 32-byte blocks")
        self.context.aliased.add(base.label)
        strides = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            strides[d] = strides[d + 1] * shape[d + 1]
        memory = replace(base, shape=shape, strides=tuple(strides))
        self.context.memory[buffer] = memory
        return memory

    def _loop(self, node: Any) -> None:
        thread = getattr(node, "thread_binding", None)
        if thread is not None and str(thread.thread_tag).startswith("blockIdx"):
            self._grid(node)
            return
        if int(node.kind) == _PARALLEL:
            self._parallel(node)
            return
        self._serial(node, self._visit)

    def _serial(self, node: Any, visit: Any) -> None:
        self.context.bind_range(node.loop_var, node.min, node.extent)
        extent = constant_int(self.context.simplify(node.extent))
        start = constant_int(self.context.simplify(node.min))
        if int(node.kind) == _UNROLLED and extent is not None and start is not None and extent <= _UNROLL_LIMIT:
            for step in range(start, start + extent):
                value = self.writer.constant(step)
                self.context.environment[hash(node.loop_var)] = Scalar(value, "index", step)
                self.context.cache.clear()
                visit(self._substitute(node.body, node.loop_var, step))
            return
        low = self.scalars.index(node.min)
        high = self.scalars.index(self.context.simplify(node.min + node.extent))
        name = self.writer.fresh("i")
        with self.writer.block(f"scf.for {name} = {low} to {high} step {self.writer.constant(1)}"):
            self.context.environment[hash(node.loop_var)] = Scalar(name, "index")
            visit(node.body)

    def _substitute(self, body: Any, variable: Any, value: int) -> Any:
        number = self.context.tvm.tirx.IntImm(str(variable.dtype), value)
        return self.context.tvm.tirx.stmt_functor.substitute(body, {variable: number})

    def _grid(self, node: Any) -> None:
        loops = []
        while kind(node) == "For" and node.thread_binding is not None \
                and str(node.thread_binding.thread_tag).startswith("blockIdx"):
            loops.append(node)
            node = node.body
        extents = [self.scalars.index(self.context.simplify(loop.extent)) for loop in loops]
        total = extents[0]
        for extent in extents[1:]:
            total = self.scalars.multiply(total, extent)
        block, blocks = (self.writer.define(f"arith.index_cast {raw} : i64 to index") for raw in (
            self.writer.define("hivm.hir.get_block_idx -> i64"), self.writer.define("hivm.hir.get_block_num -> i64")))
        turn = self.writer.fresh("turn")
        with self.writer.block(f"scf.for {turn} = {block} to {total} step {blocks}"):
            self.writer.open_prologue()
            rest = turn
            for position, loop in enumerate(loops):
                value = rest
                if position < len(loops) - 1:   # the first grid dimension varies fastest
                    value = self.writer.define(f"arith.remsi {rest}, {extents[position]} : index")
                    rest = self.writer.define(f"arith.divsi {rest}, {extents[position]} : index")
                self.context.environment[hash(loop.loop_var)] = Scalar(value, "index")
                self.context.bind_range(loop.loop_var, 0, loop.extent)
            with ExitStack() as known:
                for loop in loops:
                    for fact in self._grid_facts(loop):
                        known.enter_context(self.context.analyzer.constraint_scope(fact))
                self._visit(node)
            self.writer.close_prologue()

    def _grid_facts(self, loop: Any) -> list[Expr]:
        """A grid of ``ceildiv(n, b)`` blocks: the first element of every block, ``index * b``, is below n."""
        extent = loop.extent
        if kind(extent) == "Var":
            return [loop.loop_var < extent]
        if kind(extent) not in ("FloorDiv", "Div"):
            return []
        divisor = constant_int(extent.b)
        if divisor is None:
            return []
        whole = self.context.simplify(extent.a - (divisor - 1))
        return [loop.loop_var * divisor < whole]

    def _branch(self, node: Any, visit: Any) -> None:
        condition = self.scalars.condition(node.condition)
        with self.writer.block(f"scf.if {condition}"):
            self.context.cache.clear()
            visit(node.then_case)
            if node.else_case is not None:
                self.writer.otherwise()
                self.context.cache.clear()
                visit(node.else_case)
            self.context.cache.clear()

    def _bind(self, node: Any) -> None:
        self.current = node
        if call_name(node.value) in ("launch_thread_idx", "get_thread_binding"):
            return   # TileLang binds the thread indices whether used or not; a use is refused as an unbound variable
        self._resolve_all(node.value)
        if not self.context.axes or not self.context.depends_on_axes(node.value):
            self.context.environment[hash(node.var)] = self.scalars.value(node.value)
            if not loads(node.value) and str(node.var.dtype) in ("int32", "int64"):
                self.context.analyzer.bind(node.var, node.value)   # so that bounds see through the name
        else:
            self._statement(lambda: self._bind_tile(node), node)

    def _bind_tile(self, node: Any) -> None:
        self.context.environment[hash(node.var)] = self.vectors.evaluate(node.value)

    def _resolve_all(self, expr: Expr) -> None:
        for load in loads(expr):
            self._resolve(load.buffer)

    def _scalar_store(self, node: Any) -> None:
        self._resolve_all(node.value)
        for index in node.indices:
            self._resolve_all(index)
        memory = self._resolve(node.buffer)
        value = self.scalars.convert(self.scalars.value(node.value), memory.element)
        value = self.scalars.for_tile(value, memory.element)
        if isinstance(memory, Global):
            raise Refused(f"a scalar store to global memory ({memory.label}); write a tile")
        place = self.scalars.offset_name(self.scalars.offset(list(zip(node.indices, memory.strides))))
        self.writer.add(f"memref.store {value.name}, {memory.name}[{place}] : "
                        f"memref<{memory.size}x{memory.element}, #hivm.address_space<ub>>")

    # ------------------------------------------------------------------ one statement, tried until it fits
    def _statement(self, body: Any, node: Any) -> None:
        """Run ``body``; where rows turn out misaligned, pad the tiles involved and emit again."""
        context, layouts = self.context, self.context.layouts
        context.statement += 1
        number, self.current = context.statement, node
        context.cache.clear()
        mark, kept = self.writer.mark(), dict(self.vectors.kept)
        context.pad_temporaries = number in layouts.statements or any(
            m.label in layouts.buffers for m in self._tiles(node))
        try:
            body()
        except Misaligned as problem:
            fresh = {m.label for m in self._tiles(node) if self._can_pad(m)} - layouts.buffers
            if fresh:
                layouts.buffers |= fresh
                raise Restart from problem
            makers = self._let_bound_makers(node) - layouts.statements
            if makers:
                layouts.statements |= makers
                raise Restart from problem
            if context.pad_temporaries:
                raise
            layouts.statements.add(number)
            self.writer.rewind(mark)
            self.vectors.kept = kept
            context.statement = number - 1
            self._statement(body, node)
        finally:
            context.cache.clear()

    def _let_bound_makers(self, node: Any) -> set[int]:
        """The statements that made the let-bound tiles which this one uses."""
        bound = (self.context.environment.get(hash(v)) for v in _variables(getattr(node, "value", None)))
        return {self.context.made_by[v.memory.name] for v in bound
                if isinstance(v, View) and v.memory.name in self.context.made_by}

    def _can_pad(self, memory: OnChip) -> bool:
        rows = squeezed(memory.shape)
        return len(rows) > 1 and rows[-1] % block_elements(memory.element) != 0 \
            and memory.label not in self.context.aliased

    def _tiles(self, node: Any) -> Iterator[OnChip]:
        """On-chip buffers that a statement names."""
        for buffer in _buffers(node):
            memory = self.context.memory.get(buffer)
            if isinstance(memory, OnChip):
                yield memory

    # ------------------------------------------------------------------ T.Parallel
    @contextmanager
    def _nest(self, axes: Sequence[Any], extents: Sequence[int]) -> Iterator[None]:
        outer = self.context.axes, self.context.extents, self.context.clips
        self.context.axes, self.context.extents, self.context.clips = list(axes), list(extents), {}
        for axis, extent in zip(axes, extents):
            self.context.bind_range(axis, 0, extent)
            if extent == 1:
                self.context.environment[hash(axis)] = Scalar(self.writer.constant(0), "index", 0)
        try:
            yield
        finally:
            self.context.axes, self.context.extents, self.context.clips = outer

    def _parallel(self, node: Any) -> None:
        axes, extents = [], []
        while kind(node) == "For" and int(node.kind) == _PARALLEL:
            if constant_int(self.context.simplify(node.min)) != 0:
                raise Refused("T.Parallel must start at 0")
            axes.append(node.loop_var)
            extents.append(self.context.static_extent(node.extent, "a T.Parallel extent"))
            node = node.body
        if any(extent > 1 for extent in extents):   # an axis of one step is the number 0, and no axis
            for axis in [a for a, extent in zip(axes, extents) if extent == 1]:
                node = self._substitute(node, axis, 0)
            axes, extents = map(list, zip(*[(a, e) for a, e in zip(axes, extents) if e != 1]))
        with self._nest(axes, extents):
            self._element(node)

    def _element(self, node: Any) -> None:
        """A statement inside T.Parallel, for all elements at once."""
        self._remember_place(node)
        name = kind(node)
        if name == "SeqStmt":
            for child in node.seq:
                self._element(child)
        elif name in ("SBlockRealize", "BlockRealize"):
            self._element(node.block)
        elif name in ("SBlock", "Block"):
            for buffer in node.alloc_buffers:
                self._allocate(buffer)
            self._element(node.body)
        elif name in ("AttrStmt", "DeclBuffer"):
            self._element(node.body)
        elif name in ("Bind", "LetStmt"):
            self._bind(node)
            if hasattr(node, "body"):
                self._element(node.body)
        elif name == "For":
            if int(node.kind) == _PARALLEL:
                raise Refused("a T.Parallel inside a sequence of a T.Parallel is not lowered; nest it directly")
            self._serial(node, self._element)   # elements are independent: the serial loop may go outside
        elif name == "IfThenElse":
            self._guarded(node)
        elif name == "BufferStore":
            self._peeling(node)
        else:
            raise Refused(f"statement {name} is not lowered inside T.Parallel")

    def _guarded(self, node: Any) -> None:
        self.current = node.condition
        self._resolve_all(node.condition)
        condition = self.context.simplify(node.condition)
        if not self.context.depends_on_axes(condition):
            self._branch(node, self._element)
            return
        if node.else_case is None and self._clip(condition):
            saved = dict(self.context.clips)
            self._add_clip(condition)
            self._element(node.then_case)
            self.context.clips = saved
            return
        self._masked(node.then_case, condition)
        if node.else_case is not None:
            self._masked(node.else_case, self.context.tvm.tirx.Not(condition))

    def _clip(self, condition: Expr) -> bool:
        """Is the guard ``base + axis < limit`` (or a conjunction of such)?"""
        name = kind(condition)
        if name == "And":
            return self._clip(condition.a) and self._clip(condition.b)
        if name != "LT" or self.context.depends_on_axes(condition.b):
            return False
        form = linear(self.context.simplify(condition.a), self.context.axes, self.context.zero)
        return form is not None and not self.context.depends_on_axes(form.base) \
            and len(form.axes) == 1 and form.coefficients[form.axes[0]] == 1

    def _add_clip(self, condition: Expr) -> None:
        if kind(condition) == "And":
            self._add_clip(condition.a)
            self._add_clip(condition.b)
            return
        form = linear(self.context.simplify(condition.a), self.context.axes, self.context.zero)
        assert form is not None
        axis, = form.axes
        left = self.scalars.index(self.context.simplify(condition.b - form.base))
        self.context.clips[axis] = (left, condition)

    def _masked(self, node: Any, condition: Expr) -> None:
        """A guard that varies over the tile: on-chip stores keep the old value where it does not hold."""
        for store in _stores(node):
            if isinstance(self._resolve(store.buffer), Global):
                raise Refused("a guard that varies over the tile around a store to global memory; "
                              "guard by `base + axis < limit`, or select the value")
            tir = self.context.tvm.tirx
            old = tir.BufferLoad(store.buffer, store.indices)
            chosen = tir.Select(condition, store.value, old)
            self._peeling(tir.BufferStore(store.buffer, chosen, store.indices))

    def _peeling(self, node: Any) -> None:
        """A store over the nest; where global memory is indexed by a tile's values, the outer axis is looped."""
        mark, kept = self.writer.mark(), dict(self.vectors.kept)
        statement, environment = self.context.statement, dict(self.context.environment)
        try:
            self._statement(lambda: self._store(node), node)
        except NeedsPeeling:
            if not self.context.axes or self.context.extents[0] == 0:
                raise
            self.writer.rewind(mark)
            self.vectors.kept = kept
            self.context.environment = environment
            self.context.statement = statement
            axis, extent = self.context.axes[0], self.context.extents[0]
            if any(isinstance(v, View) for v in environment.values() if v is not None) and self._let_bound(node):
                raise Refused("a let-bound tile value in a statement that must be looped") from None
            clip = self.context.clips.get(0)
            clips = {a - 1: c for a, c in self.context.clips.items() if a}
            name = self.writer.fresh("i")
            zero, one, end = (self.writer.constant(v) for v in (0, 1, extent))
            if clip is not None:
                end = self.writer.define(f"arith.minsi {end}, {clip[0]} : index")
            with self.writer.block(f"scf.for {name} = {zero} to {end} step {one}"):
                self.context.environment[hash(axis)] = Scalar(name, "index")
                with self._nest(self.context.axes[1:], self.context.extents[1:]):
                    self.context.clips = clips
                    self.context.bind_range(axis, 0, extent)
                    if self.context.axes:
                        self._peeling(node)
                    else:
                        raise Refused("an indexed access with no contiguous axis") from None

    def _let_bound(self, node: Any) -> bool:
        return any(isinstance(self.context.environment.get(hash(v)), View) for v in _variables(node.value))

    def _store(self, node: Any) -> None:
        """``buffer[indices] = value`` for every element of the nest."""
        self._resolve_all(node.value)
        for index in node.indices:
            self._resolve_all(index)
        memory = self._resolve(node.buffer)
        value = node.value
        branch = self._scalar_branch(value)
        if branch is not None:
            condition, yes, no = branch
            tir = self.context.tvm.tirx
            with self.writer.block(f"scf.if {self.scalars.condition(condition)}"):
                self._store(tir.BufferStore(node.buffer, yes, node.indices))
                self.context.cache.clear()
                self.writer.otherwise()
                self._store(tir.BufferStore(node.buffer, no, node.indices))
                self.context.cache.clear()
            return
        if isinstance(memory, Global):
            self._store_global(node, memory)
        else:
            self._store_tile(node, memory)

    def _scalar_branch(self, value: Expr) -> tuple[Expr, Expr, Expr] | None:
        """``if_then_else`` on a scalar condition around a read of global memory: only one side may be read."""
        if call_name(value) != "if_then_else" or self.context.depends_on_axes(value.args[0]):
            return None
        if not any(isinstance(self._resolve(load.buffer), Global) for side in value.args[1:] for load in loads(side)):
            return None
        return value.args[0], value.args[1], value.args[2]

    def _store_tile(self, node: Any, memory: OnChip) -> None:
        target = self.vectors.view(node.buffer, list(node.indices))
        if target is None:
            raise Refused(f"a store to {memory.label} at an index that is not linear in the loop variables")
        missing = [a for a, e in enumerate(self.context.extents) if e > 1 and target.strides[a] == 0]
        if missing:
            raise Refused(f"every loop variable must move the destination {memory.label}: two elements of the loop "
                          "would write one place")
        target = self._clip_tile(target)
        if target.axes and target.strides[target.order[-1]] != 1:
            self._store_column(node, memory, target)
            return
        value = node.value
        hint = target if not self._reads_otherwise(value, node) else None
        dtype = str(node.buffer.dtype)
        if call_name(value) == "" and kind(value) == "BufferLoad" and isinstance(
                self.context.memory[value.buffer], Global) and str(value.dtype) == dtype:
            loaded = self.transfers.load(value.buffer, list(value.indices), dtype, hint)
            self.vectors.assign(target, loaded)
            return
        result = self.vectors.evaluate(value, hint)
        if isinstance(result, View):
            result = self.vectors.cast(result, dtype, hint)
        self.vectors.assign(target, result)

    def _clip_tile(self, target: View) -> View:
        if not self.context.clips:
            return target
        raise Refused("a guard `base + axis < limit` around an on-chip store; guard the copy to global memory, or "
                      "select the value")

    def _store_column(self, node: Any, memory: OnChip, target: View) -> None:
        raise Refused(f"a store to {memory.label} in steps of {target.strides[target.order[-1]]} elements: vector "
                      "instructions write contiguous rows; put the written axis last")

    def _reads_otherwise(self, value: Expr, node: Any) -> bool:
        """Does the value read the destination's memory at other places than it writes?"""
        memory = self.context.memory[node.buffer]
        for load in loads(value):
            other = self.context.memory[load.buffer]
            if isinstance(other, OnChip) and isinstance(memory, OnChip) and other.name == memory.name:
                if load.buffer is not node.buffer and not load.buffer.same_as(node.buffer):
                    return True
                pairs = zip(load.indices, node.indices)
                if not all(self.context.tvm.tirx.analysis.expr_deep_equal(a, b) for a, b in pairs):
                    return True
        return False

    def _store_global(self, node: Any, memory: Global) -> None:
        dtype = str(node.buffer.dtype)
        window = self.transfers.window(node.buffer, list(node.indices))
        order = window.order()
        missing = [a for a, e in enumerate(self.context.extents) if e > 1 and a not in order]
        if missing:
            raise Refused(f"every loop variable must move the destination {memory.label}: two elements of the loop "
                          "would write one place")
        value = self.vectors.evaluate(node.value)
        if isinstance(value, View):
            value = self.vectors.cast(value, dtype)
        assert not isinstance(value, View) or value.element == memory.element
        source: View
        if isinstance(value, View) and set(value.axes) == set(order) and value.order == order \
                and (not order or value.strides[order[-1]] == 1):
            source = value
        else:
            source = self.context.temporary(order, dtype, f"{memory.label} tile", by_rows=True)
            self.vectors.assign(source, value)
        clips = {axis: name for axis, (name, _) in self.context.clips.items()}
        self.transfers.store(window, source, clips)

    # ------------------------------------------------------------------ tile operators
    def _call(self, call: Any) -> None:
        if kind(call) != "Call":
            return
        name = call_name(call)
        self.current = call
        if name == "copy":
            self._statement(lambda: self._copy(call), call)
        elif name == "fill":
            self._statement(lambda: self._fill(call), call)
        elif name == "reduce":
            self._statement(lambda: self._reduce(call), call)
        elif name in ("launch_thread_idx", "tvm_call_packed", "device_assert", "assume"):
            return
        else:
            raise Refused(f"tile operator {name} is not lowered")

    def _region(self, argument: Any) -> tuple[Any, list[Expr], list[int]]:
        """(buffer, first indices, extents) of a T.region."""
        load = argument.args[0]
        self._resolve(load.buffer)
        for index in load.indices:
            self._resolve_all(index)
        extents = [self.context.static_extent(e, f"a region extent of {load.buffer.name}") for e in argument.args[2:]]
        return load.buffer, list(load.indices), extents

    @contextmanager
    def _region_nest(self, extents: Sequence[int]) -> Iterator[list[Any]]:
        variables = [self.context.tvm.tirx.Var(f"r{d}", "int32") for d in range(len(extents))]
        with self._nest(variables, extents):
            yield variables

    def _copy(self, call: Any) -> None:
        """A copy is the assignment of one region to the other, element by element."""
        (source, source_at, source_extents) = self._region(call.args[0])
        (target, target_at, target_extents) = self._region(call.args[1])
        pairs = _match_dimensions(source_extents, target_extents)
        with self._region_nest([n for n, _, _ in pairs]) as variables:
            for variable, (_, s, t) in zip(variables, pairs):
                source_at[s] = source_at[s] + variable
                target_at[t] = target_at[t] + variable
            tir = self.context.tvm.tirx
            value = tir.BufferLoad(source, source_at)
            if str(value.dtype) != str(target.dtype):
                value = tir.Cast(str(target.dtype), value)
            self._store(tir.BufferStore(target, value, target_at))

    def _fill(self, call: Any) -> None:
        buffer, at, extents = self._region(call.args[0])
        with self._region_nest(extents) as variables:
            indices = [a + v for a, v in zip(at, variables)]
            memory = self.context.memory[buffer]
            if not isinstance(memory, OnChip):
                raise Refused(f"T.fill of global memory {memory.label}")
            view = self.vectors.view(buffer, indices)
            assert view is not None
            value = self.scalars.convert(self.scalars.value(call.args[1]), memory.element)
            whole = replace(view, extents=(memory.size,), strides=(1,))
            covered = list(extents) == list(memory.shape) and view.offset == Offset()
            if covered:   # row padding included: whole registers, and nothing is left unwritten
                with self._region_nest([memory.size]):
                    self.vectors.fill(whole, value)
            else:
                self.vectors.fill(view, value)

    def _reduce(self, call: Any) -> None:
        source, source_at, extents = self._region(call.args[0])
        target, target_at, target_extents = self._region(call.args[1])
        operation = str(getattr(call.args[2], "value", call.args[2])).strip('"')
        axis = int(call.args[3])
        clear = bool(int(call.args[4])) if len(call.args) > 4 else True
        with self._region_nest(extents) as variables:
            view = self.vectors.view(source, [a + v for a, v in zip(source_at, variables)])
            kept = [d for d in range(len(extents)) if d != axis]
            if len(target_extents) == len(extents):   # a kept dimension of size 1
                positions = list(range(len(extents)))
            else:
                positions = kept
            indices = list(target_at)
            for place, d in enumerate(positions):
                if d != axis:
                    indices[place] = indices[place] + variables[d]
            result = self.vectors.view(target, indices)
            if view is None or result is None:
                raise Refused("a reduction over a region that is not linear")
            self.reductions.reduce(view, result, operation, axis, clear)


def _row_major(shape: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = [1]
    for extent in reversed(list(shape)[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides)


def _match_dimensions(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """Pair the dimensions of two regions: (extent, source dimension, target dimension); size-1 ones may be dropped."""
    if len(source) == len(target) and list(source) == list(target):
        return [(n, d, d) for d, n in enumerate(source)]
    left = [d for d, n in enumerate(source) if n != 1]
    right = [d for d, n in enumerate(target) if n != 1]
    if [source[d] for d in left] != [target[d] for d in right]:
        raise Refused(f"a copy between regions of shapes {list(source)} and {list(target)}")
    return [(source[s], s, t) for s, t in zip(left, right)]


def _stores(node: Any) -> list[Any]:
    name = kind(node)
    if name == "SeqStmt":
        return [store for child in node.seq for store in _stores(child)]
    if name == "BufferStore":
        return [node]
    raise Refused(f"statement {name} under a guard that varies over the tile")


def _variables(expr: Expr) -> list[Any]:
    return [] if expr is None else variables(expr)


def _buffers(node: Any) -> list[Any]:
    """Every buffer that a statement or tile operator names."""
    name = kind(node)
    if name in ("Bind", "LetStmt"):
        return [load.buffer for load in loads(node.value)]
    if name == "BufferStore":
        found = [node.buffer, *(load.buffer for load in loads(node.value))]
        for index in node.indices:
            found += [load.buffer for load in loads(index)]
        return found
    if name == "Call":
        found = []
        for argument in node.args:
            if call_name(argument) == "region":
                found.append(argument.args[0].buffer)
        return found
    return []


def _one_line(node: Any) -> str | None:
    if node is None:
        return None
    try:
        text = node.script(show_meta=False) if hasattr(node, "script") else str(node)
    except Exception:   # TVM's printer refuses some fragments; the message still names op and reason
        text = str(node)
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "from "))]
    return " ".join(line.strip() for line in lines[-3:])[:300]


__all__ = ["Emitted", "emit"]
