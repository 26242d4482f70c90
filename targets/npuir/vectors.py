"""Vector instructions over views, and TIR expressions as sequences of them.

`Vectors.apply` is the one place that turns an operation and its operand views into HIVM: it orders the axes as they
lie in memory, merges those it can, checks alignment, spreads operands that the instruction cannot broadcast, and
loops over outer axes where more remain than the instruction takes. `Vectors.evaluate` walks an expression and uses
it for every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from monotile.compat import lowbit
from monotile.targets.npuir.context import Context, Misaligned, NeedsPeeling, Refused, Scalar, Value
from monotile.targets.npuir.memory import (
    ELEMENT,
    LONE,
    Global,
    Offset,
    OnChip,
    View,
    agrees,
    block_elements,
    coalesce,
    common_order,
    round_up,
    same_place,
    whole_rows,
)
from monotile.targets.npuir.mlir import FLOATS, ITEM_BITS, memref
from monotile.targets.npuir.scalars import Scalars
from monotile.targets.npuir.tir import Expr, call_name, children, kind, linear, loads, structure
from monotile.targets.npuir.transfers import Transfers

MAX_RANK = 3          # the library's elementwise entries are 1-D to 3-D
REGISTER_BYTES = 256   # of a vector register
TALL, TALL_8_BIT = 16, 32   # rows of the tile that the transposing instruction takes
UNROLL = 4            # outer turns written out instead of looped: their offsets stay constants
FLAT_ONLY = {"vcmp", "vsel", "vgather", "vdeinterleave"}   # the library has these in 1-D only

_BINARY = {"Add": "vadd", "Sub": "vsub", "Mul": "vmul", "Div": "vdiv", "Max": "vmax", "Min": "vmin"}
_COMPARE = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}
_NEGATED = {"EQ": "NE", "NE": "EQ"}
_UNARY = {"exp": "vexp", "sqrt": "vsqrt", "rsqrt": "vrsqrt", "log": "vln", "fabs": "vabs", "abs": "vabs"}
_ROUNDED = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "nearbyint": "rint", "round": "round"}
_BITWISE = {"bitwise_and": "vand", "bitwise_or": "vor", "bitwise_xor": "vxor"}
_SHIFT = {"shift_left": "vshl", "shift_right": "vshr"}
_COMMUTES = ("vadd", "vmul", "vmax", "vmin")
_UNSIGNED_BITS = {"uint8": 8, "uint16": 16}
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3")

# Conversions with an entry in the 910B library; anything else goes through intermediate types.
_CAST_STEPS = {
    ("f32", "bf16"): "rint", ("f32", "f16"): "rint", ("f32", "i32"): "trunc", ("f32", "i16"): "trunc",
    ("f32", "i64"): "trunc",
    ("bf16", "f32"): "rint", ("bf16", "i32"): "trunc", ("f16", "f32"): "rint", ("f16", "i32"): "trunc",
    ("f16", "i16"): "trunc", ("f16", "i8"): "trunc",
    ("i16", "f32"): "rint", ("i16", "f16"): "rint", ("i32", "f32"): "rint", ("i64", "f32"): "rint",
    ("i32", "i64"): "rint", ("i8", "f16"): "rint",
    ("i32", "i16"): "truncwithoverflow", ("i32", "i8"): "truncwithoverflow", ("i16", "i8"): "truncwithoverflow",
    ("i64", "i32"): "truncwithoverflow",
}
# i8 goes through f16, which holds every 8-bit integer exactly; i16 through f32, likewise.
_CAST_THROUGH = {
    ("i8", "i32"): "f16", ("i8", "i16"): "f16", ("i8", "f32"): "f16", ("i8", "bf16"): "f32", ("i8", "i64"): "i32",
    ("i16", "i32"): "f32", ("i16", "i64"): "i32", ("i16", "bf16"): "f32",
    ("bf16", "f16"): "f32", ("f16", "bf16"): "f32", ("bf16", "i16"): "f32", ("bf16", "i8"): "i32",
    ("bf16", "i64"): "f32", ("f16", "i64"): "f32",
    ("i32", "bf16"): "f32", ("i32", "f16"): "f32", ("i64", "i16"): "i32", ("i64", "i8"): "i32", ("i64", "bf16"): "f32",
    ("i64", "f16"): "f32", ("f32", "i8"): "i32",
}


class Vectors:
    def __init__(self, context: Context, scalars: Scalars, transfers: Transfers) -> None:
        self.context = context
        self.writer = context.writer
        self.scalars = scalars
        self.transfers = transfers
        transfers.vectors = self
        self.kept: dict[object, View] = {}   # tiles made in the turn prologue

    # ------------------------------------------------------------------ instructions
    def apply(self, operation: str, operands: Sequence[Value], out: View, attributes: str = "",
              inline_broadcast: bool = False, text: Callable[[list[str]], str] | None = None,
              max_rank: int = MAX_RANK) -> None:
        """Emit ``operation`` over every element of ``out``.

        ``text`` overrides the usual ``ins(...) outs(...)`` form: it gets the operands as ``name : type``.
        """
        order = out.order
        views = [v for v in operands if isinstance(v, View)]
        for position, operand in enumerate(operands):
            if not isinstance(operand, View):
                continue
            if not agrees(operand, order):
                fixed = list(operands)
                fixed[position] = self.arrange(operand, tuple(a for a in order if a in operand.axes))
                return self.apply(operation, fixed, out, attributes, inline_broadcast, text, max_rank)
        merged = coalesce(whole_rows([v.select(order) for v in [*views, out]]))
        if not merged[0].extents:   # the compiler gives a vector of one element to the scalar unit: take several
            fixed = [self._spread_element(v, ()) if isinstance(v, View) and not v.memory.is_lone else v
                     for v in operands]
            if any(a is not b for a, b in zip(operands, fixed)):
                return self.apply(operation, fixed, out, attributes, inline_broadcast, text, max_rank)
            if not out.memory.is_lone:
                alone = self.context.temporary((), out.dtype)
                self.apply(operation, operands, alone, attributes, inline_broadcast, text, max_rank)
                return self._put_element(self._get_element(alone), out)
            merged = [replace(v, extents=(LONE,), strides=(1,)) for v in merged]
        if operation in FLAT_ONLY or out.element == "i1" or any(v.element == "i1" for v in views):
            max_rank, inline_broadcast = 1, False
        rank = len(merged[-1].extents)
        broadcasting = {i: [d for d in range(rank) if v.strides[d] == 0 and v.extents[d] > 1]
                        for i, v in enumerate(merged[:-1])}
        broadcasting = {i: dims for i, dims in broadcasting.items() if dims}
        bad = [i for i, dims in broadcasting.items()
               if not inline_broadcast or rank - 1 in dims or len(dims) > 1 or i != next(iter(broadcasting))]
        if bad:
            # The library's inline broadcast of a last axis is a scalar loop; of two operands it is not defined.
            which = [p for p, o in enumerate(operands) if isinstance(o, View)][bad[0]]
            fixed = list(operands)
            fixed[which] = self.spread(views[bad[0]], order)
            return self.apply(operation, fixed, out, attributes, inline_broadcast, text, max_rank)
        suffix = attributes
        if broadcasting:
            suffix += f" broadcast = {next(iter(broadcasting.values()))}"
        arguments: list[Value] = list(operands)
        slots = [p for p, o in enumerate(operands) if isinstance(o, View)]
        for slot, view in zip(slots, merged):
            arguments[slot] = view
        self._looped(operation, arguments, merged[-1], suffix, text, max_rank)
        return None

    def _looped(self, operation: str, operands: list[Value], out: View, suffix: str,
                text: Callable[[list[str]], str] | None, max_rank: int) -> None:
        if len(out.extents) <= max_rank:
            shown = [self._operand(o) for o in [*operands, out]]
            if text is not None:
                self.writer.add(text(shown))
                return
            sources = [s.split(" : ", 1) for s in shown[:-1]]
            ins = f" ins({', '.join(s[0] for s in sources)} : {', '.join(s[1] for s in sources)})" if sources else ""
            self.writer.add(f"hivm.hir.{operation}{ins} outs({shown[-1]}){suffix}")
            return

        def turn(step: str | int) -> None:
            inner = [self.step_into(o, step) if isinstance(o, View) else o for o in operands]
            self._looped(operation, inner, self.step_into(out, step), suffix, text, max_rank)

        self.turns(out.extents[0], turn)

    def turns(self, count: int, body: Callable[[str | int], None]) -> None:
        """Run ``body`` for 0 .. count - 1: written out when few, an scf.for otherwise."""
        if count <= UNROLL:
            for step in range(count):
                body(step)
            return
        name = self.writer.fresh("i")
        zero, one, end = (self.writer.constant(v) for v in (0, 1, count))
        with self.writer.block(f"scf.for {name} = {zero} to {end} step {one}"):
            body(name)

    def step_into(self, view: View, step: str | int) -> View:
        """The view at one position of its first axis."""
        stride, offset = view.strides[0], view.offset
        if stride:
            if isinstance(step, int):
                offset = replace(offset, constant=offset.constant + step * stride)
            else:
                scaled = self.scalars.multiply(step, stride)
                name = scaled if offset.name is None else self.scalars.add(offset.name, scaled)
                multiple = stride if offset.name is None else _gcd(stride, offset.multiple)
                offset = Offset(offset.constant, name, multiple)
        return replace(view, offset=offset, extents=view.extents[1:], strides=view.strides[1:])

    def _operand(self, operand: Value) -> str:
        if isinstance(operand, Scalar):
            return f"{operand.name} : {operand.element}"
        return self.operand(operand)

    def operand(self, view: View, aligned: bool = True) -> str:
        """``%name : memref<...>`` of a coalesced view; size 1 on axes that it is broadcast over."""
        memory, block = view.memory, block_elements(view.element)
        sizes = [1 if s == 0 else e for e, s in zip(view.extents, view.strides)] or [1]
        strides = list(view.strides) or [1]
        if strides[-1] not in (0, 1) and sizes[-1] > 1:
            raise Refused(f"a vector operand of {memory.label} steps by {strides[-1]} elements")
        for d in range(len(strides) - 1, -1, -1):
            if strides[d] == 0:
                strides[d] = 1 if d == len(strides) - 1 else strides[d + 1] * sizes[d + 1]
        if aligned:
            rows = [s for e, s in zip(sizes[:-1], strides[:-1]) if e > 1]
            if sizes[-1] == 1 and len(sizes) > 1:   # [n, 1]: a dense column of scalars, as reductions and vbrc take it
                rows = [s for s in rows if s != 1]
            if not view.offset.aligned_to(block) or any(s % block for s in rows):
                raise Misaligned(memory)
        whole = memref([memory.size], memory.element, "ub")
        if sizes == [memory.size] and view.offset == Offset():
            return f"{memory.name} : {whole}"
        shown: int | str = view.offset.constant if view.offset.name is None else "?"
        place = str(view.offset.constant) if view.offset.name is None else self.scalars.offset_name(view.offset)
        result = memref(sizes, memory.element, "ub", strides, shown)
        name = self.writer.define(
            f"memref.reinterpret_cast {memory.name} to offset: [{place}], sizes: {sizes}, strides: {strides} "
            f": {whole} to {result}")
        return f"{name} : {result}"

    # ------------------------------------------------------------------ making tiles
    def fill(self, out: View, value: Scalar) -> None:
        self.apply("vbrc", [self.scalars.for_tile(value, out.element)], out)

    def fill_whole(self, memory: OnChip, dtype: str, value: Scalar) -> None:
        """The whole allocation, padding included."""
        flat = View(memory, dtype, Offset(), (memory.size,), (1,))
        self._looped("vbrc", [self.scalars.for_tile(value, memory.element)], flat, "", None, 1)

    def space_out(self, source: View, spaced: View) -> None:
        """Each element to the start of its own 32-byte block."""
        order, block = spaced.order, block_elements(source.element)
        source = self.contiguous(source)
        thin, wide = source.select(order), spaced.select(order)
        self._broadcast(*coalesce([replace(thin, extents=(*thin.extents, block), strides=(*thin.strides, 0)),
                                   replace(wide, extents=(*wide.extents, block), strides=(*wide.strides, 1))]))

    def spread(self, view: View, order: Sequence[int]) -> View:
        """The view broadcast to a tile that varies over every axis in ``order``."""
        axes = tuple(a for a in order if self.context.extents[a] > 1)
        if set(view.axes) == set(axes):
            return view
        if not view.axes and not view.offset.aligned_to(block_elements(view.element)):
            return self._spread_element(view, axes)
        # One merged axis at a time, the innermost first: vbrc broadcasts one dimension an instruction.
        missing = [a for a in axes if a not in view.axes]
        target = [a for a in axes if a in view.axes or a == missing[-1]]
        run = [missing[-1]]
        for axis in reversed(missing[:-1]):   # neighbours of the missing axis that are missing too come along
            if axes.index(axis) == axes.index(run[0]) - 1 and not self.context.pad_temporaries:
                run.insert(0, axis)
                target = [a for a in axes if a in view.axes or a in run]
            else:
                break
        out = self.context.temporary(tuple(target), view.dtype, "broadcast")
        merged = coalesce([view.select(target), out.select(target)])
        self._broadcast(*merged)
        return self.spread(out, order)

    def _broadcast(self, source: View, target: View) -> None:
        """One vbrc; outer axes that both sides have become a loop, as the library broadcasts in two dimensions."""
        rank = len(target.extents)
        dims = [d for d in range(rank) if source.strides[d] == 0]
        if rank > 2 and dims == [rank - 1]:
            self.turns(target.extents[0], lambda step: self._broadcast(
                self.step_into(source, step), self.step_into(target, step)))
            return
        self._looped("vbrc", [source], target, f" broadcast_dims = {dims}", None, MAX_RANK)

    def _spread_element(self, view: View, axes: tuple[int, ...]) -> View:
        """One element of UB over a whole tile: read it with the scalar unit, then fill."""
        out = self.context.temporary(axes, view.dtype, "broadcast")
        self.apply("vbrc", [self._get_element(view)], out)
        return out

    def _get_element(self, view: View) -> Scalar:
        place = self.scalars.offset_name(view.offset)
        loaded = self.writer.define(
            f"memref.load {view.memory.name}[{place}] : {memref([view.memory.size], view.element, 'ub')}")
        return Scalar(loaded, view.element)

    def _put_element(self, value: Scalar, out: View) -> None:
        place = self.scalars.offset_name(out.offset)
        self.writer.add(f"memref.store {value.name}, {out.memory.name}[{place}] : "
                        f"{memref([out.memory.size], out.element, 'ub')}")

    def arrange(self, view: View, order: tuple[int, ...], into: View | None = None) -> View:
        """The view's values laid out in another axis order."""
        if agrees(view, order) and into is None:
            return view
        out = into if into is not None else self.context.temporary(order, view.dtype, "transposed")
        self._transpose(view, out, order)
        return out

    def _transpose(self, view: View, out: View, order: tuple[int, ...]) -> None:
        """Bring the axis that is contiguous in the source to its place: a strided copy, then planes of 2-D."""
        moving = view.order[-1]
        position = order.index(moving)
        before, after = order[:position], order[position + 1:]
        if not after:
            self._looped("copy", *self._pair(view, out, order), "", None, MAX_RANK)
            return
        middle = (*before, *after, moving)
        if view.order != middle:
            copied = self.context.temporary(middle, view.dtype, "transposed")
            self._looped("copy", *self._pair(view, copied, middle), "", None, MAX_RANK)
            view = copied
        lead, planes = self._planes(view, out, before, moving, after)
        self._transpose_planes(lead, *planes)

    def _pair(self, source: View, target: View, order: Sequence[int]) -> tuple[list[Value], View]:
        merged = coalesce([source.select(order), target.select(order)])
        return [merged[0]], merged[1]

    def _planes(self, source: View, target: View, before: Sequence[int], moving: int,
                after: Sequence[int]) -> tuple[int, tuple[View, View]]:
        """(number of leading axes, views over [before..., rows, columns]): rows ``after``, columns ``moving``."""
        rows = coalesce([source.select(after), target.select(after)])
        if len(rows[0].extents) > 1:   # rows that do not merge: one more leading axis
            first, *rest = after
            return self._planes(source, target, (*before, first), moving, rest)
        lead = coalesce([source.select(before), target.select(before)]) if before else [
            replace(v, extents=(), strides=()) for v in (source, target)]
        extent = source.extents[moving]
        made = tuple(
            replace(view, extents=(*outer.extents, *row.extents, extent),
                    strides=(*outer.strides, *row.strides, view.strides[moving]))
            for view, outer, row in zip((source, target), lead, rows))
        return len(lead[0].extents), (made[0], made[1])

    def _transpose_planes(self, lead: int, source: View, target: View) -> None:
        if lead:
            self.turns(target.extents[0], lambda step: self._transpose_planes(
                lead - 1, self.step_into(source, step), self.step_into(target, step)))
            return
        rows, columns = source.extents   # target memory is [columns, rows]
        block = block_elements(source.element)
        # The instruction transposes tiles of 16 rows (32 for 8-bit elements) by 32 bytes.
        tall = TALL_8_BIT if source.element == "i8" else TALL
        deep, wide = round_up(rows, max(tall, block)), round_up(columns, max(tall, block))
        flipped = replace(target, extents=(columns, rows), strides=(target.strides[1], target.strides[0]))
        if (deep, wide) == (rows, columns) and source.strides[0] % block == 0 and target.strides[1] % block == 0:
            self._vtranspose(source, flipped)
            return
        # Ragged: through whole tiles, zeroed so that the padding is defined.
        whole = self._plain((deep, wide), source.dtype, "ragged plane")
        turned = self._plain((wide, deep), source.dtype, "ragged plane")
        zero = self.context.element_constant(0, source.element)
        flat = replace(whole, extents=(deep * wide,), strides=(1,))
        self._looped("vbrc", [zero], flat, "", None, 1)
        inside = replace(whole, extents=(rows, columns))
        self._looped("copy", *_merged(source, inside), "", None, MAX_RANK)
        self._vtranspose(whole, turned)
        self._looped("copy", *_merged(replace(turned, extents=(columns, rows)), flipped), "", None, MAX_RANK)

    def _plain(self, shape: tuple[int, ...], dtype: str, label: str) -> View:
        """A row-major tile outside the current nest's axes."""
        memory = self.context.allocate(shape, dtype, label, padded=False)
        return View(memory, dtype, Offset(), shape, memory.strides)

    def _vtranspose(self, source: View, target: View) -> None:
        self.writer.add(f"hivm.hir.vtranspose ins({self.operand(source)}) outs({self.operand(target)}) "
                        "permutation = [1, 0]")

    def contiguous(self, view: View) -> View:
        """The view with its innermost step 1: strided reads are deinterleaved or gathered."""
        if not view.axes or view.strides[view.order[-1]] == 1:
            return view
        out = self.context.temporary(view.order, view.dtype, "gathered")
        source, target = coalesce([view.select(view.order), out.select(view.order)])
        if (len(source.extents) == 1 and source.strides == (2,) and source.offset.name is None
                and target.extents[0] % block_elements(view.element) == 0 and view.element != "i8"):
            channel = source.offset.constant % 2
            base = replace(source, offset=Offset(source.offset.constant - channel),
                           extents=(2 * source.extents[0],), strides=(1,))
            if base.offset.aligned_to(block_elements(view.element)):
                self._deinterleave(base, target, channel)
                return out
        self._gather(source, target)
        return out

    def _deinterleave(self, base: View, target: View, channel: int) -> None:
        self.writer.add(f"hivm.hir.vdeinterleave ins({self.operand(base)}) outs({self.operand(target)}) "
                        f"channel_num = 2 index_mode = <CHANNEL_{channel}>")

    def _gather(self, source: View, target: View) -> None:
        """target[...] = source at its strides, by vgather over the whole allocation."""
        if source.element in ("i8", "i1", "i64"):
            raise Refused(f"a strided read of {source.memory.label} ({source.dtype}) has no vector form; "
                          "convert the tile to a 16 or 32-bit type first")
        extents = list(target.extents)
        if len(extents) > MAX_RANK:
            self.turns(extents[0], lambda step: self._gather(self.step_into(source, step),
                                                             self.step_into(target, step)))
            return
        index = self.context.allocate(tuple(extents), "int32", "gather index", padded=self.context.pad_temporaries)
        ramp = View(index, "int32", Offset(), tuple(extents), index.strides)
        self._ramp(ramp, self.scalars.offset_name(source.offset), list(source.strides))
        self._gather_at(source.memory, ramp, target)

    def _gather_at(self, memory: OnChip, index: View, target: View) -> None:
        last = sum((extent - 1) * stride for extent, stride in zip(memory.shape, memory.strides))
        whole = self.operand(View(memory, index.dtype, Offset(), (last + 1,), (1,)))

        def text(shown: list[str]) -> str:
            return f"hivm.hir.vgather ins({whole}) indices({shown[0]}) outs({shown[1]})"

        merged = coalesce([index, target])
        self._looped("vgather", [merged[0]], merged[1], "", text, 1)

    def _ramp(self, out: View, offset: str, strides: Sequence[int]) -> None:
        """out[i, j, ...] = offset + i * strides[0] + j * strides[1] + ..., int32."""
        steps = ", ".join(self.writer.constant(s) for s in strides)
        self.writer.add(f"hivm.hir.varange offset[{offset}] strides[{steps}] outs({self.operand(out)})")

    def axis_index(self, axis: int) -> View:
        """The loop variable of an axis as an int32 tile (made once a turn)."""
        extent = self.context.extents[axis]
        key = ("ramp", extent)
        if key not in self.kept:
            with self.writer.in_prologue():
                memory = self.context.allocate((extent,), "int32", "ramp", padded=False)
                flat = View(memory, "int32", Offset(), (extent,), (1,))
                self._ramp(flat, self.writer.constant(0), [1])
            self.kept[key] = flat
        memory = self.kept[key].memory
        strides = tuple(int(a == axis) for a in range(len(self.context.extents)))
        return View(memory, "int32", Offset(), tuple(self.context.extents), strides)

    def constant_tile(self, value: Scalar, like: View) -> View:
        """A tile of one value in the shape of ``like``, for instructions that take no scalar operand."""
        if not like.axes:
            out = self.context.temporary((), like.dtype, "constant")
        else:
            out = self.context.temporary(like.order, like.dtype, "constant")
        self.apply("vbrc", [self.scalars.for_tile(value, like.element)], out)
        return out

    # ------------------------------------------------------------------ expressions
    def evaluate(self, expr: Expr, into: View | None = None) -> Value:
        """The value of an expression over the current nest: a Scalar if it does not vary, else a view.

        ``into`` is a hint where the result is wanted; the result may be elsewhere.
        """
        if not self.context.depends_on_axes(expr) and not self._reads_tile(expr):
            return self.scalars.value(expr)
        key = structure(expr)
        if key in self.context.cache:
            return self.context.cache[key]
        value = self._evaluate(expr, into)
        self.context.cache[key] = value
        return value

    def _reads_tile(self, expr: Expr) -> bool:
        return False

    def _evaluate(self, expr: Expr, into: View | None) -> Value:
        name = kind(expr)
        if name == "Var":
            for axis, variable in enumerate(self.context.axes):
                if expr.same_as(variable):
                    return self.axis_index(axis) if self.context.extents[axis] > 1 else self._index_constant(0)
            return self.context.environment[hash(expr)]
        if name == "BufferLoad":
            return self._load(expr)
        if name in _BINARY or name in ("FloorDiv", "FloorMod", "Mod"):
            return self._binary(name, expr, into)
        if name in _COMPARE or name in ("And", "Or", "Not"):
            return self.mask(expr, self.axes_of(expr))
        if name == "Cast":
            return self.cast(self.evaluate(expr.value), str(expr.dtype), into)
        if name == "Select":
            return self._select(expr.condition, expr.true_value, expr.false_value, into)
        if name == "Call":
            return self._call(expr, into)
        raise Refused(f"{name} is not lowered in a tile: {expr}")

    def axes_of(self, expr: Expr) -> set[int]:
        """The axes that an expression varies over."""
        name = kind(expr)
        if name == "Var":
            for axis, variable in enumerate(self.context.axes):
                if expr.same_as(variable):
                    return {axis} if self.context.extents[axis] > 1 else set()
            bound = self.context.environment.get(hash(expr))
            return set(bound.axes) if isinstance(bound, View) else set()
        found: set[int] = set()
        for child in children(expr):
            found |= self.axes_of(child)
        return found

    def _load(self, expr: Expr) -> Value:
        memory = self.context.memory[expr.buffer]
        for index in expr.indices:
            if any(self.context.depends_on_axes(load) for load in loads(index)):
                if isinstance(memory, Global):
                    raise NeedsPeeling(f"{memory.label} is indexed by values of a tile")
                return self._indexed(expr, memory)
        if isinstance(memory, Global):
            return self.transfers.load(expr.buffer, list(expr.indices), str(expr.dtype))
        view = self.view(expr.buffer, list(expr.indices))
        return self._indexed(expr, memory) if view is None else view

    def view(self, buffer: Any, indices: list[Expr]) -> View | None:
        """The on-chip view of an access; None if an index is not linear in the loop variables."""
        memory = self.context.memory[buffer]
        assert isinstance(memory, OnChip)
        forms = [linear(self.context.simplify(i), self.context.axes, self.context.zero) for i in indices]
        if any(f is None for f in forms):
            return None
        strides = [0] * len(self.context.extents)
        terms: list[tuple[Expr, int]] = []
        for form, stride in zip(forms, memory.strides):
            assert form is not None
            terms.append((form.base, stride))
            for axis, coefficient in enumerate(form.coefficients):
                strides[axis] += coefficient * stride
        if any(s < 0 for s in strides):
            return None
        offset = self.scalars.offset(terms)
        return View(memory, str(buffer.dtype), offset, tuple(self.context.extents), tuple(strides))

    def _indexed(self, expr: Expr, memory: OnChip) -> View:
        """A UB read at computed positions: the index as an int32 tile, then vgather."""
        if memory.element in ("i8", "i1", "i64"):
            raise Refused(f"an indexed read of {memory.label} ({expr.dtype}) has no vector form; "
                          "convert the tile to a 16 or 32-bit type first")
        total: Expr = self.context.zero
        for index, stride in zip(expr.indices, memory.strides):
            total = total + index * stride
        index_tile = self.evaluate(total)
        if isinstance(index_tile, Scalar):
            raise Refused(f"a scalar index reached the indexed path: {expr}")
        index_tile = self.contiguous(index_tile)
        out = self.context.temporary(index_tile.order, str(expr.dtype), "gathered")
        source, target = coalesce([index_tile.select(index_tile.order), out.select(index_tile.order)])
        self._gather_at(memory, source, target)
        return out

    def operands(self, values: Sequence[Value]) -> list[Value]:
        """Operands that one instruction can take together: unit steps, one axis order."""
        ready: list[Value] = [self.contiguous(v) if isinstance(v, View) else v for v in values]
        views = [v for v in ready if isinstance(v, View)]
        if not views:
            return ready
        order = common_order(views)
        return [self.arrange(v, tuple(a for a in order if a in v.axes)) if isinstance(v, View) else v for v in ready]

    def result(self, values: Sequence[Value], dtype: str, into: View | None, label: str = "temporary") -> View:
        """Where an operation over ``values`` puts its result: ``into`` where it fits, else a fresh tile."""
        views = [v for v in values if isinstance(v, View)]
        order = common_order(views)
        if into is not None and into.dtype == dtype and into.order == order:
            return into
        return self.context.temporary(order, dtype, label)

    def binary(self, operation: str, a: Value, b: Value, dtype: str, into: View | None = None) -> Value:
        """A float or integer arithmetic instruction; bf16 is computed in f32 and rounded back."""
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            raise Refused("scalar arithmetic reached the vector unit")
        element = ELEMENT[dtype]
        if element in ("bf16", "f16"):
            wide = self.binary(operation, self._to(a, "float32"), self._to(b, "float32"), "float32")
            return self.cast(wide, dtype, into)
        if element in ("i8", "i64", "i1"):
            raise Refused(f"vector arithmetic on {dtype} is not lowered; compute in int32")
        if operation == "vdiv" and element == "i32":
            raise Refused("integer division has no vector form")
        a, b = self.operands([a, b])
        out = self.result([a, b], dtype, into)
        if isinstance(a, Scalar) and operation in _COMMUTES:
            a, b = b, a
        a = self.scalars.for_tile(a, element) if isinstance(a, Scalar) else a
        b = self.scalars.for_tile(b, element) if isinstance(b, Scalar) else b
        if isinstance(a, Scalar) and element != "f32":   # the integer library has no scalar-first form
            assert isinstance(b, View)
            a = self.constant_tile(a, b)
        self.apply(operation, [a, b], out, inline_broadcast=True)
        return out

    def _to(self, value: Value, dtype: str) -> Value:
        if isinstance(value, Scalar):
            return self.scalars.convert(value, ELEMENT[dtype])
        return self.cast(value, dtype)

    def _binary(self, name: str, expr: Expr, into: View | None) -> Value:
        dtype = str(expr.dtype)
        if name in ("FloorDiv", "FloorMod", "Mod"):
            return self._integer_division(name, expr)
        a, b = self.evaluate(expr.a), self.evaluate(expr.b)
        if name == "Sub" and isinstance(b, Scalar) and ELEMENT[dtype] == "i32" and isinstance(b.value, int):
            return self.binary("vadd", a, Scalar("", "index", -b.value), dtype, into)
        return self.binary(_BINARY[name], a, b, dtype, into)

    def _integer_division(self, name: str, expr: Expr) -> Value:
        """By a power of two: an arithmetic shift (floor) or a mask."""
        divisor = self.evaluate(expr.b)
        if not isinstance(divisor, Scalar) or not isinstance(divisor.value, int) or divisor.value < 1 \
                or divisor.value & (divisor.value - 1):
            raise Refused(f"integer division of a tile by anything but a constant power of two: {expr}")
        if name == "Mod":
            raise Refused(f"truncating modulo of a tile is not lowered: {expr}")
        value = self.evaluate(expr.a)
        shift = divisor.value.bit_length() - 1
        if name == "FloorDiv":
            return self.shift("vshr", value, shift, str(expr.dtype))
        return self.bitwise("vand", value, self._index_constant(divisor.value - 1), str(expr.dtype))

    def _index_constant(self, value: int) -> Scalar:
        return Scalar(self.writer.constant(value), "index", value)

    def shift(self, operation: str, value: Value, amount: int, dtype: str, into: View | None = None) -> Value:
        assert isinstance(value, View)
        value = self.contiguous(value)
        out = self.result([value], dtype, into)
        self.apply(operation, [value, self.context.element_constant(amount, value.element)], out)
        return out

    def bitwise(self, operation: str, a: Value, b: Value, dtype: str, into: View | None = None) -> Value:
        a, b = self.operands([a, b])
        out = self.result([a, b], dtype, into)
        if isinstance(a, Scalar):
            a, b = b, a
        assert isinstance(a, View)
        if isinstance(b, Scalar):   # the library's bitwise entries take two vectors
            if self._with_register(operation, a, b, out):
                return out
            b = self.constant_tile(b, a)
        self.apply(operation, [a, b], out, inline_broadcast=operation != "vxor")   # vxor takes equal shapes only
        return out

    def _with_register(self, operation: str, a: View, constant: Scalar, out: View) -> bool:
        """Against one vector register's worth of the constant, repeated: no tile of constants is needed."""
        lanes = REGISTER_BYTES // (ITEM_BITS[a.element] // 8)
        source, target = coalesce([a.select(out.order), out.select(out.order)])
        if operation == "vxor" or constant.value is None or source.strides != (1,) or target.strides != (1,) \
                or source.extents[0] % lanes or source.extents[0] == lanes:
            return False
        key = ("register", a.element, constant.value)
        if key not in self.kept:
            with self.writer.in_prologue():
                memory = self.context.allocate((lanes,), a.dtype, "constant", padded=False)
                flat = View(memory, a.dtype, Offset(), (lanes,), (1,))
                self._looped("vbrc", [self.scalars.for_tile(constant, a.element)], flat, "", None, 1)
            self.kept[key] = flat
        rows = source.extents[0] // lanes
        split = [replace(v, extents=(rows, lanes), strides=(lanes, 1)) for v in (source, target)]
        row = replace(self.kept[key], extents=(rows, lanes), strides=(0, 1))
        self._looped(operation, [split[0], row], split[1], " broadcast = [0]", None, MAX_RANK)
        return True

    # ---- masks
    def mask(self, expr: Expr, axes: set[int], order: tuple[int, ...] | None = None) -> View:
        """A condition as an i1 tile that varies over all of ``axes``."""
        name = kind(expr)
        if name in ("And", "Or"):
            a, b = self.mask(expr.a, axes, order), self.mask(expr.b, axes, order)
            if a.order != b.order:
                raise Refused(f"the sides of {name} lie in different axis orders: {expr}")
            out = self.context.temporary(a.order, "bool", "mask")
            self.apply("vand" if name == "And" else "vor", [a, b], out)
            return out
        if name == "Not":
            inner = expr.a
            if kind(inner) in _NEGATED:
                opposite = getattr(self.context.tvm.tirx, _NEGATED[kind(inner)])
                return self.mask(opposite(inner.a, inner.b), axes, order)
            a = self.mask(inner, axes, order)
            out = self.context.temporary(a.order, "bool", "mask")
            self.apply("vnot", [a], out)
            return out
        if name in _COMPARE:
            return self._compare(_COMPARE[name], self.evaluate(expr.a), self.evaluate(expr.b), axes, order)
        if name == "Call" and call_name(expr) == "isnan":
            value = self.evaluate(expr.args[0])
            return self._compare("ne", value, value, axes, order)
        if name == "Call" and call_name(expr) == "likely":
            return self.mask(expr.args[0], axes, order)
        if not self.context.depends_on_axes(expr):
            choice = self.scalars.condition(expr)
            one, zero = self.writer.constant(1, "i32"), self.writer.constant(0, "i32")
            picked = Scalar(self.writer.define(f"arith.select {choice}, {one}, {zero} : i32"), "i32")
            tile = self.context.temporary(order or tuple(sorted(axes)), "int32", "flag")
            self.apply("vbrc", [picked], tile)
            return self._compare("eq", tile, self._index_constant(1), axes, order)
        value = self.evaluate(expr)
        if isinstance(value, View) and value.element == "i1":
            return value
        raise Refused(f"{name} is not lowered as a condition: {expr}")

    def _compare(self, mode: str, a: Value, b: Value, axes: set[int], order: tuple[int, ...] | None) -> View:
        views = [v for v in (a, b) if isinstance(v, View)]
        element = views[0].element
        if element in ("bf16", "f16"):
            return self._compare(mode, self._to(a, "float32"), self._to(b, "float32"), axes, order)
        if element in ("i8", "i16"):
            wide = [self.cast(v, "int32") if isinstance(v, View) else v for v in (a, b)]
            return self._compare(mode, wide[0], wide[1], axes, order)
        if element == "i64":
            raise Refused("comparison of int64 tiles has no vector form; cast to int32 first")
        a, b = self.operands([a, b])
        views = [v for v in (a, b) if isinstance(v, View)]
        if order is None:
            order = common_order(views)
        full = tuple(a_ for a_ in sorted(axes) if a_ not in order) + tuple(order)
        full = tuple(a_ for a_ in full if a_ in axes)
        sides: list[Value] = [self.spread(self.arrange(v, tuple(x for x in full if x in v.axes)), full)
                              if isinstance(v, View) else self.scalars.for_tile(v, element) for v in (a, b)]
        if isinstance(sides[0], Scalar):   # the library compares vector with scalar, not scalar with vector
            sides.reverse()
            mode = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(mode, mode)
        out = self.context.temporary(full, "bool", "mask")
        left, right = sides
        assert isinstance(left, View)
        if element == "i32" and mode not in ("eq", "ne"):
            # no ordered i32 comparison in the vector library: a < b is max(a, b) != a
            larger = self.context.temporary(full, "int32", "larger")
            self.apply("vmax", [left, right], larger)
            if mode in ("lt", "ge"):
                reference: Value = left
            else:
                reference = right
            mode = {"lt": "ne", "ge": "eq", "le": "eq", "gt": "ne"}[mode]
            left, right = larger, reference
        self.apply("vcmp", [left, right], out, attributes=f" compare_mode = <{mode}>")
        return out

    def _select(self, condition: Expr, yes: Expr, no: Expr, into: View | None) -> Value:
        dtype = str(yes.dtype)
        known = self.context.simplify(condition)
        if kind(known) == "IntImm":
            return self.evaluate(yes if int(known.value) else no, into)
        if ELEMENT[dtype] == "i8":
            raise Refused(f"a select of {dtype} tiles has no vector form; select in a 16 or 32-bit type")
        a, b = self.evaluate(yes), self.evaluate(no)
        axes = self.axes_of(condition)
        for value in (a, b):
            if isinstance(value, View):
                axes = axes | set(value.axes)
        return self.choose(condition, a, b, axes, dtype, into)

    def choose(self, condition: Expr, a: Value, b: Value, axes: set[int], dtype: str, into: View | None) -> View:
        a, b = self.operands([a, b])
        views = [v for v in (a, b) if isinstance(v, View)]
        order = common_order(views) if views else None
        if order is not None and set(order) != axes:
            order = tuple(x for x in sorted(axes) if x not in order) + order
        mask = self.mask(condition, axes, order)
        element = ELEMENT[dtype]
        sides: list[Value] = [
            self.spread(self.arrange(v, tuple(x for x in mask.order if x in v.axes)), mask.order)
            if isinstance(v, View) else self.scalars.for_tile(v, element) for v in (a, b)]
        out = into if into is not None and into.dtype == dtype and into.order == mask.order \
            else self.context.temporary(mask.order, dtype, "selected")
        self.apply("vsel", [mask, *sides], out)
        return out

    # ---- casts
    def cast(self, value: Value, dtype: str, into: View | None = None) -> Value:
        element = ELEMENT[dtype]
        if isinstance(value, Scalar):
            return self.scalars.convert(value, element)
        have = value.dtype
        if have == dtype:
            return value
        if value.element == "i1":
            return self._from_mask(value, dtype, into)
        if dtype in _FLOAT8 or have in _FLOAT8:
            return self._float8(value, dtype, into)
        if have in _UNSIGNED_BITS and element not in (value.element,):
            # sign-extended by the instruction: mask off the copies of the sign bit
            wide = self._convert(value, "int32")
            bits = self.bitwise("vand", wide, self._index_constant((1 << _UNSIGNED_BITS[have]) - 1), "int32")
            return self.cast(bits, dtype, into)
        return self._convert(value, dtype, into)

    def _convert(self, value: View, dtype: str, into: View | None = None) -> View:
        source, target = value.element, ELEMENT[dtype]
        if source == target:
            return replace(value, dtype=dtype)
        if (source, target) in _CAST_STEPS:
            ready = self.contiguous(value)
            out = self.result([ready], dtype, into)
            self.apply("vcast", [ready], out, attributes=f" round_mode = <{_CAST_STEPS[source, target]}>", max_rank=2)
            return out
        through = _CAST_THROUGH.get((source, target))
        if through is None:
            raise Refused(f"no vector conversion from {value.dtype} to {dtype}")
        names = {"f16": "float16", "f32": "float32", "i32": "int32"}
        return self._convert(self._convert(value, names[through]), dtype, into)

    def _from_mask(self, mask: View, dtype: str, into: View | None) -> View:
        if ELEMENT[dtype] in ("i8", "i64"):
            middle = self._from_mask(mask, "int32", None)
            return self._convert(middle, dtype, into)
        out = into if into is not None and into.dtype == dtype and into.order == mask.order \
            else self.context.temporary(mask.order, dtype, "flag")
        one, zero = (self.context.element_constant(v, ELEMENT[dtype]) for v in (1, 0))
        self.apply("vsel", [mask, one, zero], out)
        return out

    def _float8(self, value: View, dtype: str, into: View | None) -> Value:
        """The chip has no e4m3: the integer conversions of compat.lowbit, over a stand-in variable."""
        variable = self.context.tvm.tirx.Var("float8_operand", "float32" if dtype in _FLOAT8 else "uint8")
        if dtype in _FLOAT8:
            self.context.environment[hash(variable)] = self._to(value, "float32")
            code = self.evaluate(lowbit.e4m3_from_f32_bits(variable))
            assert isinstance(code, View)
            return replace(self._convert(code, "int8"), dtype=dtype)
        self.context.environment[hash(variable)] = replace(value, dtype="uint8")
        return self.cast(self.evaluate(lowbit.e4m3_bits_to_f32(variable)), dtype, into)

    # ---- calls
    def _call(self, expr: Expr, into: View | None) -> Value:
        name, dtype = call_name(expr), str(expr.dtype)
        if name == "if_then_else":
            if any(isinstance(self.context.memory[load.buffer], Global) and self.context.depends_on_axes(load)
                   for side in expr.args[1:] for load in loads(side)) and self.axes_of(expr.args[0]):
                raise NeedsPeeling("a guarded read of global memory")
            return self._select(expr.args[0], expr.args[1], expr.args[2], into)
        if name in _BITWISE:
            a, b = self.evaluate(expr.args[0]), self.evaluate(expr.args[1])
            return self.bitwise(_BITWISE[name], a, b, dtype, into)
        if name == "bitwise_not":
            value = self.evaluate(expr.args[0])
            assert isinstance(value, View)
            value = self.contiguous(value)
            out = self.result([value], dtype, into)
            self.apply("vnot", [value], out)
            return out
        if name in _SHIFT:
            return self._shift(name, expr, into)
        if name == "reinterpret":
            return self._reinterpret(expr)
        if name in _ROUNDED:
            value = self.evaluate(expr.args[0])
            assert isinstance(value, View)
            value = self.contiguous(value)
            out = self.result([value], dtype, into)
            self.apply("vcast", [value], out, attributes=f" round_mode = <{_ROUNDED[name]}>", max_rank=2)
            return out
        if name == "sigmoid":
            return self._sigmoid(self.evaluate(expr.args[0]), into)
        if name in _UNARY:
            value = self.evaluate(expr.args[0])
            if ELEMENT[dtype] in ("bf16", "f16"):
                value = self._to(value, "float32")
                wide = self._unary(_UNARY[name], value, "float32", None)
                return self.cast(wide, dtype, into)
            if ELEMENT[dtype] not in FLOATS:
                negative = self.binary("vmul", value, self._index_constant(-1), dtype)
                return self.binary("vmax", value, negative, dtype, into)
            return self._unary(_UNARY[name], value, dtype, into)
        if name == "likely":
            return self.evaluate(expr.args[0], into)
        raise Refused(f"{name} is not lowered in a tile: {expr}")

    def _unary(self, operation: str, value: Value, dtype: str, into: View | None) -> View:
        assert isinstance(value, View)
        value = self.contiguous(value)
        out = self.result([value], dtype, into)
        self.apply(operation, [value], out)
        return out

    def _sigmoid(self, value: Value, into: View | None) -> Value:
        """1 / (1 + exp(-x))"""
        minus_one, one = (self.context.element_constant(v, "f32") for v in (-1.0, 1.0))
        negated = self.binary("vmul", value, minus_one, "float32")
        grown = self.binary("vadd", self._unary("vexp", negated, "float32", None), one, "float32")
        return self.binary("vdiv", one, grown, "float32", into)

    def _shift(self, name: str, expr: Expr, into: View | None) -> Value:
        value, amount = self.evaluate(expr.args[0]), self.evaluate(expr.args[1])
        dtype = str(expr.dtype)
        if not isinstance(amount, Scalar) or not isinstance(amount.value, int):
            raise Refused(f"a shift of a tile by anything but a constant: {expr}")
        if ELEMENT[dtype] not in ("i32", "i16"):
            raise Refused(f"vector shifts of {dtype} are not lowered; compute in int32")
        shifted = self.shift(_SHIFT[name], value, amount.value, dtype, into)
        if name == "shift_right" and dtype.startswith("uint") and amount.value:
            # the vector shift is arithmetic whatever its flag says
            bits = 32 if ELEMENT[dtype] == "i32" else 16
            keep = (1 << (bits - amount.value)) - 1
            return self.bitwise("vand", shifted, self._index_constant(keep), dtype, into)
        return shifted

    def _reinterpret(self, expr: Expr) -> Value:
        value = self.evaluate(expr.args[0])
        element, dtype = ELEMENT[str(expr.dtype)], str(expr.dtype)
        assert isinstance(value, View)
        if value.element == element:
            return replace(value, dtype=dtype)
        memory = value.memory
        name = self.writer.define(
            f"hivm.hir.bitcast {memory.name} : {memref([memory.size], memory.element, 'ub')} "
            f"-> {memref([memory.size], element, 'ub')}")
        if memory.name in self.context.made_by:
            self.context.made_by[name] = self.context.made_by[memory.name]
        return replace(value, memory=replace(memory, name=name, element=element), dtype=dtype)

    # ------------------------------------------------------------------ assignment
    def assign(self, destination: View, value: Value) -> None:
        """Put a value, already computed, into an on-chip destination."""
        if isinstance(value, Scalar):
            self.fill(destination, value)
            return
        if same_place(value, destination):
            return
        if set(value.axes) != set(destination.axes):
            value = self.spread(self.contiguous(value), tuple(
                [a for a in destination.order if a not in value.axes] + list(value.order))
                if not agrees(value, destination.order) else destination.order)
        if value.axes and value.strides[value.order[-1]] != 1:
            value = self.contiguous(value)
        if agrees(value, destination.order):
            self.apply("copy", [value], destination)
            return
        self.arrange(value, destination.order, destination)


def _merged(source: View, target: View) -> tuple[list[Value], View]:
    merged = coalesce([source, target])
    if not merged[0].extents:
        merged = [replace(v, extents=(1,), strides=(1,)) for v in merged]
    return [merged[0]], merged[1]


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a
