"""Scalar TIR expressions on the core's scalar unit.

Every integer is an MLIR ``index`` (64 bit), so address arithmetic cannot wrap at 2**31; a value is narrowed only
where it meets a 32-bit tile.
"""

from __future__ import annotations

import math

from monotile.targets.npuir.context import Context, Refused, Scalar
from monotile.targets.npuir.memory import ELEMENT, Global, Offset, OnChip
from monotile.targets.npuir.mlir import FLOATS, memref
from monotile.targets.npuir.tir import Expr, call_name, kind

_INTEGER = {"Add": "addi", "Sub": "subi", "Mul": "muli", "FloorDiv": "floordivsi", "Div": "divsi",
            "Mod": "remsi", "Min": "minsi", "Max": "maxsi"}
_FLOAT = {"Add": "addf", "Sub": "subf", "Mul": "mulf", "Div": "divf", "Min": "minimumf", "Max": "maximumf"}
_BITWISE = {"bitwise_and": "andi", "bitwise_or": "ori", "bitwise_xor": "xori", "shift_left": "shli",
            "shift_right": "shrsi"}
_COMPARE = {"LT": ("slt", "olt"), "LE": ("sle", "ole"), "GT": ("sgt", "ogt"), "GE": ("sge", "oge"),
            "EQ": ("eq", "oeq"), "NE": ("ne", "une")}


class Scalars:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.writer = context.writer

    # ---- entry points
    def index(self, expr: Expr) -> str:
        """The SSA name, of type index, of an integer expression."""
        value = self.value(expr)
        if value.element != "index":
            raise Refused(f"an integer is needed, got {value.element}: {expr}")
        return value.name

    def condition(self, expr: Expr) -> str:
        value = self.value(expr)
        if value.element != "i1":
            raise Refused(f"a condition is needed, got {expr}")
        return value.name

    def value(self, expr: Expr) -> Scalar:
        if isinstance(expr, int):
            return self._constant(expr, "index")
        name = kind(expr)
        if name == "IntImm":
            element = "i1" if str(expr.dtype) == "bool" else "index"
            return self._constant(bool(expr.value) if element == "i1" else int(expr.value), element)
        if name == "FloatImm":
            return self._constant(float(expr.value), ELEMENT[str(expr.dtype)])
        if name == "Var":
            bound = self.context.environment.get(hash(expr))
            if isinstance(bound, Scalar):
                return bound
            raise Refused(f"{expr} is not a scalar here")
        if name in _INTEGER or name in ("FloorMod",):
            return self._arithmetic(name, expr)
        if name in _COMPARE:
            return self._compare(name, expr)
        if name in ("And", "Or"):
            a, b = self.condition(expr.a), self.condition(expr.b)
            return self._define(f"arith.{name.lower()}i {a}, {b} : i1", "i1")
        if name == "Not":
            return self._define(f"arith.xori {self.condition(expr.a)}, {self.writer.constant(True, 'i1')} : i1", "i1")
        if name == "Cast":
            return self.convert(self.value(expr.value), ELEMENT[str(expr.dtype)])
        if name == "BufferLoad":
            return self._load(expr)
        if name == "Select":
            return self._select(expr.condition, expr.true_value, expr.false_value)
        if name == "Call":
            return self._call(expr)
        raise Refused(f"scalar {name} is not lowered: {expr}")

    def convert(self, value: Scalar, element: str) -> Scalar:
        """Change a scalar's type with TIR's meaning of a cast (float to integer truncates)."""
        have = value.element
        if element in ("i64", "i32", "i16", "i8") and have == "index":
            return value   # integers stay index until they meet a tile
        if have == element:
            return value
        if value.value is not None and element != "i1":
            if element in FLOATS:
                return self._constant(float(value.value), element)
            return self._constant(math.trunc(value.value), "index")
        if have == "index" and element in FLOATS:
            narrow = self._define(f"arith.index_cast {value.name} : index to i32", "i32")
            wide = self._define(f"arith.sitofp {narrow.name} : i32 to f32", "f32")
            return self.convert(wide, element)
        if have == "i1":
            if element in FLOATS:
                one, zero = self.writer.constant(1.0, element), self.writer.constant(0.0, element)
                return self._define(f"arith.select {value.name}, {one}, {zero} : {element}", element)
            one, zero = self.writer.constant(1), self.writer.constant(0)
            return self._define(f"arith.select {value.name}, {one}, {zero} : index", "index")
        if have in FLOATS and element in ("i64", "i32", "i16"):
            whole = self._define(f"arith.fptosi {value.name} : {have} to i32", "i32")
            return self._define(f"arith.index_cast {whole.name} : i32 to index", "index")
        if have in ("bf16", "f16") and element == "f32":
            return self._define(f"arith.extf {value.name} : {have} to f32", "f32")
        if have == "f32" and element in ("bf16", "f16"):
            return self._define(f"arith.truncf {value.name} : f32 to {element}", element)
        raise Refused(f"scalar cast from {have} to {element} is not lowered")

    def for_tile(self, value: Scalar, element: str) -> Scalar:
        """The scalar in the element type of the tile that it meets."""
        if value.element == element:
            return value
        if value.value is not None:
            return self.context.element_constant(value.value, element)
        if value.element == "index" and element in ("i64", "i32", "i16", "i8"):
            return self._define(f"arith.index_cast {value.name} : index to {element}", element)
        return self.convert(value, element)

    def offset(self, terms: list[tuple[Expr, int]]) -> Offset:
        """``sum(expression * stride)`` as an element offset with what is known of its divisibility."""
        constant, name, multiple = 0, None, 0
        for expr, stride in terms:
            simple = self.context.simplify(expr)
            value = self.value(simple)
            if isinstance(value.value, int):
                constant += value.value * stride
                continue
            scaled = self.multiply(value.name, stride)
            known = self.context.multiple_of(simple) * stride
            name = scaled if name is None else self.add(name, scaled)
            multiple = math.gcd(multiple, known)
        return Offset(constant, name, multiple)

    def offset_name(self, offset: Offset) -> str:
        if offset.name is None:
            return self.writer.constant(offset.constant)
        if offset.constant == 0:
            return offset.name
        return self.add(offset.name, self.writer.constant(offset.constant))

    def multiply(self, name: str, factor: int | str) -> str:
        if factor == 1:
            return name
        other = self.writer.constant(factor) if isinstance(factor, int) else factor
        return self.writer.define(f"arith.muli {name}, {other} : index")

    def add(self, a: str, b: str) -> str:
        return self.writer.define(f"arith.addi {a}, {b} : index")

    # ---- pieces
    def _constant(self, value: float | int | bool, element: str) -> Scalar:
        return Scalar(self.writer.constant(value, element), element, value)

    def _define(self, operation: str, element: str) -> Scalar:
        return Scalar(self.writer.define(operation), element)

    def _pair(self, expr: Expr) -> tuple[Scalar, Scalar]:
        a, b = self.value(expr.a), self.value(expr.b)
        if a.element != b.element:
            target = a.element if a.value is None else b.element
            a, b = self.convert(a, target), self.convert(b, target)
        return a, b

    def _arithmetic(self, name: str, expr: Expr) -> Scalar:
        a, b = self._pair(expr)
        if a.element in FLOATS:
            if name not in _FLOAT:
                raise Refused(f"{name} of floats is not lowered: {expr}")
            return self._define(f"arith.{_FLOAT[name]} {a.name}, {b.name} : {a.element}", a.element)
        if name == "FloorMod":
            # floor-modulo for negative values too: a - floor(a / b) * b
            quotient = self._define(f"arith.floordivsi {a.name}, {b.name} : index", "index")
            product = self._define(f"arith.muli {quotient.name}, {b.name} : index", "index")
            return self._define(f"arith.subi {a.name}, {product.name} : index", "index")
        if isinstance(a.value, int) and isinstance(b.value, int) and name in ("Add", "Sub", "Mul"):
            folded = {"Add": a.value + b.value, "Sub": a.value - b.value, "Mul": a.value * b.value}[name]
            return self._constant(folded, "index")
        return self._define(f"arith.{_INTEGER[name]} {a.name}, {b.name} : index", "index")

    def _compare(self, name: str, expr: Expr) -> Scalar:
        a, b = self._pair(expr)
        integer, real = _COMPARE[name]
        if a.element in FLOATS:
            return self._define(f"arith.cmpf {real}, {a.name}, {b.name} : {a.element}", "i1")
        return self._define(f"arith.cmpi {integer}, {a.name}, {b.name} : {a.element}", "i1")

    def _select(self, condition: Expr, yes: Expr, no: Expr) -> Scalar:
        choice, a, b = self.condition(condition), self.value(yes), self.value(no)
        if a.element != b.element:
            raise Refused(f"the branches of a scalar select have types {a.element} and {b.element}")
        return self._define(f"arith.select {choice}, {a.name}, {b.name} : {a.element}", a.element)

    def _call(self, expr: Expr) -> Scalar:
        name = call_name(expr)
        if name in _BITWISE:
            a, b = self.value(expr.args[0]), self.value(expr.args[1])
            return self._define(f"arith.{_BITWISE[name]} {a.name}, {b.name} : index", "index")
        if name == "if_then_else":
            return self._guarded(expr)
        if name == "reinterpret":
            return self._reinterpret(self.value(expr.args[0]), ELEMENT[str(expr.dtype)], expr)
        if name == "infinity":
            return self._constant(math.inf, ELEMENT[str(expr.dtype)])
        if name == "likely":
            return self.value(expr.args[0])
        raise Refused(f"scalar call {name} is not lowered: {expr}")

    def _reinterpret(self, value: Scalar, element: str, expr: Expr) -> Scalar:
        if value.element == "f32" and element == "i32":
            bits = self._define(f"arith.bitcast {value.name} : f32 to i32", "i32")
            return self._define(f"arith.index_cast {bits.name} : i32 to index", "index")
        if value.element == "index" and element == "f32":
            bits = self._define(f"arith.index_cast {value.name} : index to i32", "i32")
            return self._define(f"arith.bitcast {bits.name} : i32 to f32", "f32")
        raise Refused(f"scalar reinterpret from {value.element} to {element} is not lowered: {expr}")

    def _guarded(self, expr: Expr) -> Scalar:
        """``if_then_else`` evaluates only the branch it takes: its load may be out of bounds otherwise."""
        condition = self.condition(expr.args[0])
        declared = ELEMENT[str(expr.dtype)]
        element = "index" if declared in ("i64", "i32", "i16", "i8") else declared
        result = self.writer.fresh()
        with self.writer.block(f"{result} = scf.if {condition} -> ({element})"):
            yes = self.convert(self.value(expr.args[1]), declared)
            self.writer.add(f"scf.yield {yes.name} : {element}")
            self.writer.otherwise()
            no = self.convert(self.value(expr.args[2]), declared)
            self.writer.add(f"scf.yield {no.name} : {element}")
        return Scalar(result, element)

    def _load(self, expr: Expr) -> Scalar:
        memory = self.context.memory[expr.buffer]
        element = memory.element
        unsigned = str(expr.dtype) in ("uint8", "uint16", "uint32")
        if isinstance(memory, Global):
            place = self.global_offset(memory, [self.index(i) for i in expr.indices])
            loaded = self._define(f"memref.load {memory.name}[{place}] : {memref(['?'], element, 'gm')}", element)
        elif isinstance(memory, OnChip):
            offset = self.offset_name(self.offset(list(zip(expr.indices, memory.strides))))
            space = memref([memory.size], element, "ub")
            loaded = self._define(f"memref.load {memory.name}[{offset}] : {space}", element)
        if element in FLOATS or element == "i1":
            return loaded
        widen = "index_castui" if unsigned else "index_cast"
        return self._define(f"arith.{widen} {loaded.name} : {element} to index", "index")

    def global_offset(self, memory: Global, indices: list[str]) -> str:
        """The element offset of a place in a global tensor, in 64 bits."""
        total: str | None = None
        for name, stride in zip(indices, memory.strides):
            if name == self.writer.constant(0):
                continue
            term = self.multiply(name, stride if isinstance(stride, int) else self.index(stride))
            total = term if total is None else self.add(total, term)
        return total if total is not None else self.writer.constant(0)
