"""Reading TileLang's TIR: node kinds, operator names, tile-operator arguments and linear index forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Expr = Any  # a TVM PrimExpr; TVM's Python classes carry no types


def kind(node: Any) -> str:
    return type(node).__name__


def call_name(node: Any) -> str:
    """``exp`` for a call of ``tirx.exp``; empty for anything that is not a call of a named operator."""
    if kind(node) != "Call":
        return ""
    return str(getattr(node.op, "name", node.op)).rsplit(".", 1)[-1]


def is_zero(node: Expr) -> bool:
    return kind(node) == "IntImm" and int(node.value) == 0


def constant_int(node: Expr) -> int | None:
    if isinstance(node, int):
        return node
    return int(node.value) if kind(node) == "IntImm" else None


def children(node: Expr) -> list[Expr]:
    """The operands of an expression node."""
    name = kind(node)
    if name in ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max",
                "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"):
        return [node.a, node.b]
    if name == "Not":
        return [node.a]
    if name == "Cast":
        return [node.value]
    if name == "Select":
        return [node.condition, node.true_value, node.false_value]
    if name == "BufferLoad":
        return list(node.indices)
    if name == "Call":
        return [arg for arg in node.args if hasattr(arg, "dtype")]
    return []


def variables(node: Expr) -> list[Any]:
    """Every Var in the expression, with repetitions."""
    if kind(node) == "Var":
        return [node]
    found: list[Any] = []
    for child in children(node):
        found += variables(child)
    return found


def loads(node: Expr) -> list[Any]:
    """Every BufferLoad in the expression, indices included."""
    found = [node] if kind(node) == "BufferLoad" else []
    for child in children(node):
        found += loads(child)
    return found


def structure(node: Expr, memo: dict[int, Any] | None = None) -> Any:
    """A hashable key: equal for structurally equal expressions over the same variables and buffers."""
    name = kind(node)
    if name == "Var":
        return ("var", node.handle.value if hasattr(node, "handle") and hasattr(node.handle, "value") else hash(node))
    if name in ("IntImm", "FloatImm"):
        return (name, str(node.dtype), float(node.value).hex() if name == "FloatImm" else int(node.value))
    parts = tuple(structure(child) for child in children(node))
    if name == "BufferLoad":
        return (name, hash(node.buffer), parts)
    if name == "Call":
        plain = tuple(str(arg) for arg in node.args if not hasattr(arg, "dtype"))
        return (name, call_name(node), str(node.dtype), plain, parts)
    return (name, str(node.dtype) if hasattr(node, "dtype") else "", parts)


@dataclass(frozen=True)
class Linear:
    """``base + sum(coefficients[a] * axis a)``; ``base`` does not mention the axes."""

    base: Expr
    coefficients: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(a for a, c in enumerate(self.coefficients) if c)


def linear(index: Expr, axes: Sequence[Any], zero: Expr) -> Linear | None:
    """Split an index over the loop variables ``axes``; None if it is not linear in them."""
    rank = len(axes)
    name = kind(index)
    if name == "Var":
        for position, axis in enumerate(axes):
            if index.same_as(axis):
                return Linear(zero, tuple(int(p == position) for p in range(rank)))
        return Linear(index, (0,) * rank)
    if name == "Cast" and str(index.dtype) in ("int32", "int64") and str(index.value.dtype) in ("int32", "int64"):
        return linear(index.value, axes, zero)
    if not any(v.same_as(axis) for v in variables(index) for axis in axes):
        return Linear(index, (0,) * rank)
    if name in ("Add", "Sub"):
        a, b = linear(index.a, axes, zero), linear(index.b, axes, zero)
        if a is None or b is None:
            return None
        sign = 1 if name == "Add" else -1
        if name == "Add":
            base = b.base if is_zero(a.base) else a.base if is_zero(b.base) else a.base + b.base
        else:
            base = a.base if is_zero(b.base) else a.base - b.base
        return Linear(base, tuple(x + sign * y for x, y in zip(a.coefficients, b.coefficients)))
    if name == "Mul":
        for factor, other in ((constant_int(index.a), index.b), (constant_int(index.b), index.a)):
            if factor is not None:
                inner = linear(other, axes, zero)
                if inner is None:
                    return None
                base = inner.base if is_zero(inner.base) else inner.base * factor
                return Linear(base, tuple(factor * c for c in inner.coefficients))
    return None
