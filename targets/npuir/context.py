"""What every part of the emitter shares: the writer, the analyser, the environment and the memory layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from monotile.targets.npuir.memory import ELEMENT, Global, Offset, OnChip, View, block_elements, layout, round_up
from monotile.targets.npuir.mlir import Writer, memref
from monotile.targets.npuir.tir import Expr, constant_int, kind

# The library's casts to 8 bits write pieces of 32 rows of 32 bytes whatever the size of their result.
NARROWING_BYTES = 1024


class Refused(Exception):
    """A construct that cannot be lowered, in words; the walker adds op, statement and line."""


class Misaligned(Exception):
    """An operand's rows do not start on 32-byte blocks; a padded layout may mend it."""

    def __init__(self, memory: OnChip) -> None:
        super().__init__(f"rows of {memory.label} {memory.shape} {memory.element} do not start on 32-byte blocks")
        self.memory = memory


class NeedsPeeling(Exception):
    """The statement indexes global memory by a value of a tile: the loop axis must become a scalar loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Restart(Exception):
    """A buffer's layout changed: emit the function again."""


@dataclass(frozen=True)
class Scalar:
    """An SSA scalar. ``element`` is ``index`` for every integer; ``value`` is set for constants."""

    name: str
    element: str
    value: float | int | bool | None = None


Value = Scalar | View


@dataclass
class Layouts:
    """What was learnt in earlier rounds of emission about rows that must start on 32-byte blocks."""

    buffers: set[str] = field(default_factory=set)     # labels of the source's buffers whose rows are padded
    statements: set[int] = field(default_factory=set)  # ordinals of statements whose temporaries are padded


class Context:
    """State of one function's emission."""

    def __init__(self, layouts: Layouts) -> None:
        from tilelang import tvm

        self.tvm = tvm
        self.writer = Writer()
        self.analyzer = tvm.arith.Analyzer()
        self.zero = tvm.tirx.IntImm("int32", 0)
        self.environment: dict[int, Value] = {}   # hash(Var) -> value
        self.memory: dict[Any, OnChip | Global] = {}  # TIR buffer -> memory
        self.by_data: dict[int, OnChip] = {}      # hash(buffer.data) -> the allocation that views share
        self.layouts = layouts
        self.statement = 0                        # ordinal of the current statement
        self.made_by: dict[str, int] = {}         # temporary -> the statement that made it
        self.aliased: set[str] = set()            # labels of buffers with a reshaped view: rows cannot be padded
        self.pad_temporaries = False
        self.axes: list[Any] = []                 # loop variables of the current T.Parallel nest
        self.extents: list[int] = []
        self.clips: dict[int, tuple[str, Expr]] = {}   # axis -> (SSA extent, expression) from a guard in the source
        self.cache: dict[Any, Value] = {}         # values of the current statement's subexpressions

    # ---- proofs
    def simplify(self, expr: Expr) -> Expr:
        return expr if isinstance(expr, int) else self.analyzer.simplify(expr)

    def proves(self, condition: Expr) -> bool:
        if isinstance(condition, bool):
            return condition
        return bool(self.analyzer.can_prove(condition))

    def bind_range(self, variable: Any, low: Expr, extent: Expr) -> None:
        self.analyzer.bind(variable, self.tvm.ir.Range.from_min_extent(low, extent))

    def multiple_of(self, expr: Expr) -> int:
        """The largest known divisor of an integer expression (0 for the constant 0)."""
        found = self.analyzer.modular_set(expr)
        return math.gcd(int(found.coeff), int(found.base))

    # ---- memory
    def allocate(self, shape: tuple[int, ...], dtype: str, label: str, padded: bool | None = None) -> OnChip:
        element = ELEMENT[dtype]
        size, strides = layout(shape, element, label in self.layouts.buffers if padded is None else padded)
        if element == "i8":
            size = round_up(size, NARROWING_BYTES)
        kind = memref([size], element, "ub")
        name = self.writer.define(f"memref.alloc() : {kind}", stem="ub")
        padded_rows = any(outer != inner * extent for outer, inner, extent in zip(strides, strides[1:], shape[1:]))
        if element != "i1" and (padded_rows or math.prod(shape) == 1):
            # whole-row instructions read the padding along: give it a value
            self.writer.add(f"hivm.hir.vbrc ins({self.writer.constant(0, element)} : {element}) outs({name} : {kind})")
        return OnChip(name, size, element, shape, strides, label)

    def temporary(self, order: tuple[int, ...], dtype: str, label: str = "temporary", by_rows: bool = False,
                  spacing: int = 1) -> View:
        """A fresh tile over the given axes of the nest, laid out in that order.

        ``by_rows``: rows will be addressed one by one (by a DMA, say). Elsewhere a narrow type whose 32-bit rows are
        whole blocks is left dense, so that it merges into one run with the 32-bit tiles it comes from.
        ``spacing``: elements from one to the next along the last axis.
        """
        shape = tuple(self.extents[a] for a in order) or (1,)
        if spacing > 1:
            shape = (*shape, spacing)
        padded = self.pad_temporaries and (by_rows or shape[-1] % block_elements("i32") != 0)
        memory = self.allocate(shape, dtype, label, padded=padded)
        self.made_by[memory.name] = self.statement
        strides = [0] * len(self.extents)
        for axis, stride in zip(order, memory.strides):
            strides[axis] = stride
        return View(memory, dtype, Offset(), tuple(self.extents), tuple(strides))

    def element_constant(self, value: float | int | bool, element: str) -> Scalar:
        if element in ("f32", "f16", "bf16"):
            value = float(value)
        elif element in ("i32", "i16", "i8"):   # a bit pattern may come unsigned
            bits = int(element[1:])
            value = (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        return Scalar(self.writer.constant(value, element), element, value)

    def static_extent(self, expr: Expr, what: str) -> int:
        value = constant_int(self.simplify(expr))
        if value is None:
            raise Refused(f"{what} must be a constant, got {expr}")
        return value

    def depends_on_axes(self, expr: Expr) -> bool:
        """Does the expression vary over the current nest (directly, or through a let-bound tile)?"""
        name = kind(expr)
        if name == "Var":
            return any(expr.same_as(axis) for axis in self.axes) or isinstance(self.environment.get(hash(expr)), View)
        from monotile.targets.npuir.tir import children

        return any(self.depends_on_axes(child) for child in children(expr))
