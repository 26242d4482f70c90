"""Expressions of a nest as T.simd calls: every value is 64 lanes of 32 bits, a predicate, or a scalar for all lanes.

Narrow types exist in memory only: they widen as they are loaded and narrow as they are stored. Arithmetic is that of
the source, one operation at a time, so that no result differs from SIMT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monotile.targets.ascendc.simd.addresses import (
    Address,
    Loop,
    NoSimd,
    address_of,
    dense_strides,
    on_block,
)
from monotile.targets.ascendc.tir import READ, WRITE, flat_view, is_global, item_bytes, tirx, tvm

LANES = 64
ALL_LANES = "PAT_ALL"
ZEROING = "MODE_ZEROING"
WIDE = ("float32", "int32", "uint32")
HALVES = ("int16", "bfloat16")
NARROW = {"int16": 16, "int8": 24}   # bits of a lane above them: lanes hold them as int32, their sign carried up
_ACCESS_PTR = tirx.op.Op.get("tl.access_ptr")
_BINARY = {"Add": "vadd", "Sub": "vsub", "Mul": "vmul", "Max": "vmax", "Min": "vmin", "bitwise_and": "vand",
           "bitwise_or": "vor", "bitwise_xor": "vxor"}
_WITH_SCALAR = {"Add": "vadds", "Mul": "vmuls", "Max": "vmaxs", "Min": "vmins"}
_COMPARE = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_UNARY = {"exp": "vexp", "log": "vln", "fabs": "vabs", "sqrt": "vsqrt"}
_PRECISE = {"vsqrt": 2}   # correctly rounded, subnormals kept; TileLang's codes of its precision selectors
# What a load gives: (distribution, conversion), and what a store takes.
_UNPACK = {2: "UNPK_B16", 1: "UNPK4_B8"}
_PACK = {2: "PK_B32", 1: "PK4_B32"}


def pointer_to(place: Any, count: int, mask: int) -> Any:
    """The address of an element, and how many of its buffer are meant: of a register's lanes no more than there are."""
    count = min(count, math.prod(int(extent) for extent in place.buffer.shape))
    return tirx.Call("handle", _ACCESS_PTR, [place, tirx.IntImm("int32", count), tirx.IntImm("int32", mask)])


def simd(name: str, dtype: str, *arguments: Any, annotations: Any = None) -> Any:
    return tirx.call_intrin(dtype, tirx.op.Op.get(f"tl.simd.{name}"), *arguments, annotations=annotations)


def lanes(dtype: str) -> str:
    return f"{dtype}x{2048 // int(tvm.DataType(dtype).bits)}"


@dataclass
class Value:
    """``node``: a vector's or predicate's variable, or a scalar expression. ``dtype``: of one lane."""

    node: Any
    dtype: str
    scalar: bool = False


@dataclass(frozen=True)
class Stored:
    """A store of this turn: where, what, in which lanes."""

    buffer: Any
    indices: list[Any]
    value: Value
    mask: Any
    statement: Any

    def is_at(self, buffer: Any, indices: Sequence[Any]) -> bool:
        same = tirx.analysis.expr_deep_equal
        return bool(self.buffer.same_as(buffer)) and all(same(a, b) for a, b in zip(self.indices, indices))


@dataclass
class Body:
    """The statements of one turn of a nest's loop over registers."""

    loops: Sequence[Loop]
    vector: int                      # which loop runs over lanes; its variable steps by LANES
    mask: Any
    analyzer: Any
    is_uniform: Callable[[Any], bool]
    statements: list[Any] = field(default_factory=list)
    bound: dict[Any, Value] = field(default_factory=dict)
    _known: dict[int, list[tuple[Any, Value]]] = field(default_factory=dict)
    _stored: dict[Any, list[Stored]] = field(default_factory=dict)
    _ramp: Value | None = None

    # ------------------------------------------------------------------ values
    def bind(self, node: Any, dtype: str, name: str = "v") -> Value:
        variable = tirx.Var(name, node.dtype)
        self.statements.append(tirx.Bind(variable, node))
        return Value(variable, dtype)

    def operation(self, name: str, dtype: str, *operands: Any, annotations: Any = None) -> Value:
        return self.bind(simd(name, lanes(dtype), *operands, self.mask, ZEROING, annotations=annotations), dtype)

    def predicate(self, name: str, *arguments: Any) -> Value:
        return self.bind(simd(name, "boolx256", *arguments), "bool", "p")

    def spread(self, value: Value) -> Any:
        """The vector of a value."""
        if not value.scalar:
            return value.node
        return self.operation("vdup", value.dtype, tirx.Cast(value.dtype, value.node) if str(
            value.node.dtype) != value.dtype else value.node).node

    def value(self, expr: Any) -> Value:
        key = tvm.ir.structural_hash(expr)
        for known, value in self._known.get(key, ()):
            if tirx.analysis.expr_deep_equal(known, expr):   # structural equality takes one buffer for another
                return value
        value = self._value(expr)
        self._known.setdefault(key, []).append((expr, value))
        return value

    def _value(self, expr: Any) -> Value:
        name = type(expr).__name__
        dtype = str(expr.dtype)
        if name == "Var" and expr in self.bound:
            return self.bound[expr]
        if name != "BufferLoad" and self._same_in_all_lanes(expr):
            return Value(expr, dtype, scalar=True)
        if name == "Var":   # the loop over lanes
            return self._lane_numbers()
        if name == "BufferLoad":
            return self.load(expr)
        if name in _COMPARE:
            return self._compare(_COMPARE[name], expr.a, expr.b)
        if name in ("And", "Or", "Not"):
            return self._logic(name, expr)
        if name == "Cast":
            return self._cast(expr)
        if name == "Select":
            return self._select(expr.condition, expr.true_value, expr.false_value)
        if name == "Div" and dtype == "float32":
            return self.operation("vdiv", dtype, self.spread(self.value(expr.a)), self.spread(self.value(expr.b)))
        if name in _BINARY:
            return self._binary(name, expr.a, expr.b, dtype)
        if name in ("FloorDiv", "FloorMod"):
            return self._divided(name, expr.a, expr.b)
        if name == "Call":
            return self._call(expr, dtype)
        raise NoSimd(f"{name} of {dtype} has no vector form")

    def _same_in_all_lanes(self, expr: Any) -> bool:
        mentions = False

        def visit(node: Any) -> None:
            nonlocal mentions
            if isinstance(node, tirx.Var):
                mentions = mentions or node.same_as(self.loops[self.vector].variable) or node in self.bound
            elif isinstance(node, tirx.BufferLoad):
                mentions = mentions or not self.is_uniform(node)

        tirx.stmt_functor.post_order_visit(tirx.Evaluate(expr), visit)
        return not mentions

    def _lane_numbers(self) -> Value:
        """0, 1, 2 ... of the lanes, beginning at the vector loop's variable."""
        if self._ramp is None:
            variable = self.loops[self.vector].variable
            self._ramp = self.bind(simd("vci", lanes("int32"), variable, "INC_ORDER"), "int32", "lane")
        return self._ramp

    def _wide(self, dtype: str) -> None:
        if dtype not in WIDE:
            raise NoSimd(f"arithmetic in {dtype}: lanes are float32 and int32")

    def _signed(self, value: Value, dtype: str) -> Value:
        """A narrow integer from a lane's low bits."""
        by = tirx.const(NARROW[dtype], "int16")
        up = self.operation("vshls", "int32", value.node, by)
        return Value(self.operation("vshrs", "int32", up.node, by).node, dtype)

    def _narrow(self, value: Value) -> Value:
        """A narrow integer as the int32 that lanes hold."""
        if value.dtype not in NARROW:
            return value
        return Value(tirx.Cast("int32", value.node) if value.scalar else value.node, "int32", value.scalar)

    def _binary(self, name: str, a: Any, b: Any, dtype: str) -> Value:
        left, right = self._narrow(self.value(a)), self._narrow(self.value(b))
        if dtype in NARROW:
            made = self._of_two(name, left, right, "int32")
            return Value(made.node, dtype) if name.startswith("bitwise") else self._signed(made, dtype)
        self._wide(dtype)
        return self._of_two(name, left, right, dtype)

    def _of_two(self, name: str, left: Value, right: Value, dtype: str) -> Value:
        if left.scalar and name in ("Add", "Mul", "Max", "Min"):
            left, right = right, left
        if right.scalar and name in _WITH_SCALAR:
            return self.operation(_WITH_SCALAR[name], dtype, left.node, right.node)
        if right.scalar and name == "Sub" and isinstance(right.node, (tirx.IntImm, tirx.FloatImm)):
            return self.operation("vadds", dtype, left.node, tirx.const(-right.node.value, dtype))
        return self.operation(_BINARY[name], dtype, self.spread(left), self.spread(right))

    def _divided(self, name: str, a: Any, b: Any) -> Value:
        """floordiv and floormod by a power of two."""
        if str(a.dtype) != "int32" or not isinstance(b, tirx.IntImm) or int(b) & (int(b) - 1) or int(b) <= 0:
            raise NoSimd(f"{name} by {b}, which is no power of two")
        value = self.value(a)
        if name == "FloorDiv":
            return self.operation("vshrs", "int32", value.node, tirx.const(int(b).bit_length() - 1, "int16"))
        return self.operation("vand", "int32", value.node,
                              self.spread(Value(tirx.const(int(b) - 1, "int32"), "int32", True)))

    def _compare(self, mode: str, a: Any, b: Any) -> Value:
        left, right = self._narrow(self.value(a)), self._narrow(self.value(b))
        self._wide(left.dtype)
        if left.scalar:
            left, right, mode = right, left, _MIRRORED[mode]
        if right.scalar:
            return self.predicate("vcmps", left.node, right.node, self.mask, mode)
        return self.predicate("vcmp", left.node, right.node, self.mask, mode)

    def _logic(self, name: str, expr: Any) -> Value:
        parts = [self.as_predicate(self.value(part)) for part in ([expr.a] if name == "Not" else [expr.a, expr.b])]
        return self.predicate({"And": "pand", "Or": "por", "Not": "pnot"}[name], *parts, self.mask)   # codespell:ignore

    def as_predicate(self, value: Value) -> Any:
        if not value.scalar:
            return value.node
        count = tirx.Select(value.node, tirx.const(LANES, "uint32"), tirx.const(0, "uint32"))
        return self.predicate("update_mask", count, 32).node

    def _select(self, condition: Any, a: Any, b: Any) -> Value:
        dtype = str(a.dtype)
        chosen = self.as_predicate(self.value(condition))
        left, right = (self._narrow(self.value(each)) for each in (a, b))
        self._wide(left.dtype)
        made = self.bind(simd("vsel", lanes(left.dtype), self.spread(left), self.spread(right), chosen), left.dtype)
        return Value(made.node, dtype)

    def _call(self, expr: Any, dtype: str) -> Value:
        name = str(getattr(expr.op, "name", expr.op)).rsplit(".", 1)[-1]
        if name == "if_then_else":
            return self._select(*expr.args)
        if name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            return self._binary(name, expr.args[0], expr.args[1], dtype)
        if name in ("shift_left", "shift_right"):
            return self._shift(name, expr, dtype)
        if name == "isnan":
            operand = self.spread(self.value(expr.args[0]))
            return self.predicate("vcmp", operand, operand, self.mask, "ne")
        if name in _UNARY and dtype == "float32":
            vector = _UNARY[name]
            annotations = {"precision": tirx.IntImm("int32", _PRECISE[vector])} if vector in _PRECISE else None
            return self.operation(vector, dtype, self.spread(self.value(expr.args[0])), annotations=annotations)
        if name == "abs" and dtype in ("float32", "int32"):
            return self.operation("vabs", dtype, self.spread(self.value(expr.args[0])))
        if name == "reinterpret":
            return self._reinterpret(expr.args[0], dtype)
        raise NoSimd(f"{name} of {dtype} has no vector form")

    def _shift(self, name: str, expr: Any, dtype: str) -> Value:
        value, by = self._narrow(self.value(expr.args[0])), self._narrow(self.value(expr.args[1]))
        self._wide(value.dtype)
        left = name == "shift_left"
        if isinstance(by.node, tirx.Cast) and isinstance(by.node.value, tirx.IntImm):
            by = Value(by.node.value, by.dtype, True)
        if isinstance(by.node, tirx.IntImm):
            made = self.operation("vshls" if left else "vshrs", value.dtype, self.spread(value),
                                  tirx.const(int(by.node.value), "int16"))
        else:
            made = self.operation("vshl" if left else "vshr", value.dtype, self.spread(value), self.spread(by))
        return self._signed(made, dtype) if dtype in NARROW else made

    def _reinterpret(self, of: Any, dtype: str) -> Value:
        if dtype == "uint8" and isinstance(of, tirx.Cast) and str(of.dtype) == "float8_e4m3fn":
            return Value(self._to_e4m3(of.value).node, "uint8")   # the byte in the low quarter of a lane
        value = self.value(of)
        if (value.dtype, dtype) == ("uint8", "float8_e4m3fn"):
            return Value(value.node, dtype)
        self._wide(dtype)
        self._wide(value.dtype)
        return self.bind(tirx.reinterpret(lanes(dtype), self.spread(value)), dtype)

    def _to_e4m3(self, of: Any) -> Value:
        value = self.value(of)
        if value.dtype != "float32":
            raise NoSimd(f"a conversion from {value.dtype} to float8_e4m3fn")
        node = simd("vcvt", lanes("float8_e4m3fn"), self.spread(value), self.mask, "ROUND_R", "RS_ENABLE", "PART_P0",
                    ZEROING)
        return self.bind(node, "float8_e4m3fn")

    def _cast(self, expr: Any) -> Value:
        target, source = str(expr.dtype), str(expr.value.dtype)
        if target == "float8_e4m3fn":
            return self._to_e4m3(expr.value)
        value = self.value(expr.value)
        if value.dtype == target or {target, value.dtype} <= {"int32", "uint32"}:
            return Value(value.node, target, value.scalar)
        if (value.dtype, target) == ("uint8", "int32"):   # a converted byte
            bits = self.bind(tirx.reinterpret(lanes("int32"), value.node), "int32")
            low = self.spread(Value(tirx.const(255, "int32"), "int32", True))
            return self.operation("vand", "int32", bits.node, low)
        if (source, target) == ("int32", "float32"):
            return self.bind(simd("vcvt", lanes(target), self.spread(value), self.mask, "ROUND_R", ZEROING), target)
        if (source, target) == ("float32", "int32"):
            return self.bind(
                simd("vcvt", lanes(target), self.spread(value), self.mask, "ROUND_Z", "RS_ENABLE", ZEROING), target)
        if (source, target) == ("float32", "bfloat16"):
            return self.bind(simd("vcvt", lanes(target), self.spread(value), self.mask, "ROUND_R", "RS_DISABLE",
                                  "PART_EVEN", ZEROING), target)
        value = self._narrow(value)
        if value.dtype == target:
            return value
        if target in NARROW and value.dtype in ("int32", "uint32"):
            return self._signed(Value(self.spread(value), value.dtype), target)
        if target in ("uint16", "uint8") and value.dtype in ("int32", "uint32"):
            return Value(self.spread(value), target)   # a store keeps the low bytes
        raise NoSimd(f"a conversion from {source} to {target}")

    # ------------------------------------------------------------------ memory
    def load(self, expr: Any) -> Value:
        buffer = expr.buffer
        if is_global(buffer):
            raise NoSimd(f"{buffer.name} is in global memory")
        for stored in self._stored.get(buffer.data, ()):
            if not stored.is_at(buffer, expr.indices):
                raise NoSimd(f"{buffer.name} is read back at another place than it was written")
            if stored.mask is not self.mask:
                raise NoSimd(f"{buffer.name} is read back where only some lanes wrote it")
            return stored.value
        dtype = str(buffer.dtype)
        try:
            address = address_of(buffer, expr.indices, self.loops, self.analyzer)
        except NoSimd:
            if dtype not in WIDE:
                raise
            return self._gathered(buffer, self._computed(buffer, expr.indices), dtype)
        step = address.coefficients[self.vector]
        if step == 0:
            return self._widened(self._vld(buffer, expr, f"BRC_B{8 * item_bytes(buffer)}", 1), dtype, spread=True)
        if step == 1 and on_block(buffer, address, self.vector, LANES, self.analyzer):
            narrow = _UNPACK.get(item_bytes(buffer))
            if narrow is not None and dtype not in ("bfloat16", "int16", "float8_e4m3fn", "uint8", "int8"):
                raise NoSimd(f"a load of {dtype}")
            return self._widened(self._vld(buffer, expr, narrow or "NORM", LANES), dtype)
        if dtype in HALVES and step == 2:
            return self._half(buffer, address, dtype)
        if dtype not in WIDE:
            raise NoSimd(f"{buffer.name} ({dtype}) is read at steps of {step}, or off 32 bytes")
        return self._gathered(buffer, self._offsets(address), dtype)

    def _vld(self, buffer: Any, place: Any, distribution: str, count: int) -> Any:
        pointer = pointer_to(place, count, READ)
        dtype = str(buffer.dtype)
        return self.bind(simd("vld", lanes(dtype), pointer, distribution), dtype, str(buffer.name)).node

    def _half(self, buffer: Any, address: Address, dtype: str) -> Value:
        """Every second of 16-bit elements: half of each 32-bit word."""
        half = self.analyzer.modular_set(address.base)
        odd = int(half.base) % 2
        even = Address(address.base - odd, address.coefficients)
        if int(half.coeff) % 2 or not on_block(buffer, even, self.vector, LANES, self.analyzer):
            raise NoSimd(f"{buffer.name} ({dtype}) is read at steps of 2, off 32 bytes")
        words = flat_view(buffer, "int32")
        place: Any = even.base
        for loop, coefficient in zip(self.loops, address.coefficients):
            place = place + loop.variable * coefficient
        word = Value(self._vld(words, tirx.BufferLoad(words, [self.analyzer.simplify(tirx.floordiv(place, 2))]),
                               "NORM", LANES), "int32")
        if dtype == "int16":
            return Value(self.operation("vshrs", "int32", word.node, tirx.const(16, "int16")).node, dtype) \
                if odd else self._signed(word, dtype)
        if odd:
            bits = self.operation("vand", "int32", word.node, self.spread(Value(tirx.const(-65536, "int32"), "int32",
                                                                              True)))
        else:
            bits = self.operation("vshls", "int32", word.node, tirx.const(16, "int16"))
        return self.bind(tirx.reinterpret(lanes("float32"), bits.node), "float32")

    def _widened(self, vector: Any, dtype: str, spread: bool = False) -> Value:
        """64 lanes of 32 bits of a load."""
        if dtype in WIDE:
            return Value(vector, dtype)
        if spread and dtype not in ("bfloat16", "float8_e4m3fn"):
            raise NoSimd(f"one {dtype} for all lanes")
        if dtype == "bfloat16":
            return self.bind(simd("vcvt", lanes("float32"), vector, self.mask, "PART_EVEN", ZEROING), "float32")
        if dtype == "float8_e4m3fn":
            return self.bind(simd("vcvt", lanes("float32"), vector, self.mask, "PART_P0", ZEROING), "float32")
        bits = self.bind(tirx.reinterpret(lanes("int32"), vector), "int32")
        if dtype == "uint8":
            return bits
        return self._signed(bits, dtype)

    def _offsets(self, address: Address) -> Any:
        """Element offsets of the lanes from the buffer's first, as uint32."""
        base: Any = address.base
        for position, (loop, coefficient) in enumerate(zip(self.loops, address.coefficients)):
            if position != self.vector:
                base = base + loop.variable * coefficient
        scaled = self.operation("vmuls", "int32", self._lane_numbers().node,
                                tirx.const(address.coefficients[self.vector], "int32"))
        moved = self.operation("vadds", "int32", scaled.node, self.analyzer.simplify(base))
        return self.bind(tirx.reinterpret(lanes("uint32"), moved.node), "uint32").node

    def _computed(self, buffer: Any, indices: Sequence[Any]) -> Any:
        """Element offsets of indices that are no linear form, lane by lane."""
        linear: Any = tirx.IntImm("int32", 0)
        for index, stride in zip(indices, dense_strides(buffer), strict=True):
            linear = linear + index * stride
        value = self.spread(self.value(self.analyzer.simplify(linear)))
        return self.bind(tirx.reinterpret(lanes("uint32"), value), "uint32").node

    def _gathered(self, buffer: Any, offsets: Any, dtype: str) -> Value:
        flat = flat_view(buffer)
        pointer = pointer_to(tirx.BufferLoad(flat, [0]), int(flat.shape[0]), READ)
        return self.bind(simd("vgather2", lanes(dtype), pointer, offsets, self.mask), dtype)

    def store(self, statement: Any, mask: Any) -> None:
        buffer, dtype = statement.buffer, str(statement.buffer.dtype)
        if is_global(buffer):
            raise NoSimd(f"{buffer.name} is in global memory")
        value = self._stored_value(statement.value, dtype)
        vector = self.spread(value)
        address = address_of(buffer, statement.indices, self.loops, self.analyzer)
        step = address.coefficients[self.vector]
        aligned = step == 1 and on_block(buffer, address, self.vector, LANES, self.analyzer)
        if value.dtype != dtype and not (dtype == "float8_e4m3fn" and value.dtype == "uint8"):
            raise NoSimd(f"{value.dtype} is stored as {dtype}")
        self._before_store(buffer, statement.indices, mask)
        place = tirx.BufferLoad(buffer, statement.indices)
        if self.loops[self.vector].extent == 1 and dtype in WIDE:
            pointer = pointer_to(place, 1, WRITE)
            self.statements.append(tirx.Evaluate(simd("vsts", "void", pointer, vector, mask, "ONEPT_B32")))
        elif not aligned:
            if dtype not in WIDE or step == 0:
                raise NoSimd(f"{buffer.name} ({dtype}) is written at steps of {step}, or off 32 bytes")
            flat = flat_view(buffer)
            pointer = pointer_to(tirx.BufferLoad(flat, [0]), int(flat.shape[0]), WRITE)
            offsets = self._offsets(address)
            self.statements.append(tirx.Evaluate(simd("vscatter", "void", vector, pointer, offsets, mask)))
        else:
            pointer = pointer_to(place, LANES, WRITE)
            distribution = _PACK.get(item_bytes(buffer), "NORM_B32")
            self.statements.append(tirx.Evaluate(simd("vsts", "void", pointer, vector, mask, distribution)))
        self._stored.setdefault(buffer.data, []).insert(0, Stored(buffer, list(statement.indices), value, mask,
                                                                  self.statements[-1]))
        self._forget(buffer.data)

    def _before_store(self, buffer: Any, indices: Sequence[Any], mask: Any) -> None:
        """An earlier store to this place is left out where this one covers it; else it comes first by a barrier."""
        for stored in self._stored.get(buffer.data, ()):
            if stored.is_at(buffer, indices) and (mask is stored.mask or mask is self.mask):
                self.statements = [each for each in self.statements if each is not stored.statement]
            else:
                self.statements.append(tirx.Evaluate(simd("mem_bar", "void", "VST_VST")))
            return

    def _stored_value(self, expr: Any, dtype: str) -> Value:
        if dtype not in WIDE and isinstance(expr, (tirx.IntImm, tirx.FloatImm)) and float(expr.value) == 0.0:
            return Value(self.spread(Value(tirx.const(0, "int32"), "int32", scalar=True)), dtype)   # of any width
        return self.value(expr)

    def _forget(self, data: Any) -> None:
        """Values that were made from what is overwritten now."""
        def reads(expr: Any) -> bool:
            found = False

            def visit(node: Any) -> None:
                nonlocal found
                found = found or (isinstance(node, tirx.BufferLoad) and node.buffer.data.same_as(data))

            tirx.stmt_functor.post_order_visit(tirx.Evaluate(expr), visit)
            return found

        for key, known in list(self._known.items()):
            self._known[key] = [(expr, value) for expr, value in known if not reads(expr)]
