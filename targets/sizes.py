"""Sizes, strides and grids that depend on a kernel's dynamic symbols, as Python expressions.

A TIR expression such as ``T.ceildiv(n, 8)`` becomes ``((n + 7) // 8)``: text that can be kept in a file, and computed
at each call without TVM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"}
_CALL = {"Min": "min", "Max": "max"}
# Sizes are not negative, and there truncation and floor agree.
_TRUNCATING = {"Div": "//", "Mod": "%"}
_SHAPE = re.compile(r"[\w\s()+\-*/%,]*")


def expression(expr: Any) -> str:
    """A TIR integer expression in Python. Raises ValueError for one that has no such form."""
    kind = type(expr).__name__
    if kind in ("int", "IntImm"):
        return str(int(expr))
    if kind == "Var":
        return str(expr.name)
    if kind == "Cast":
        return expression(expr.value)
    operator = _BINARY.get(kind) or _TRUNCATING.get(kind)
    if operator is not None:
        return f"({expression(expr.a)} {operator} {expression(expr.b)})"
    if kind in _CALL:
        return f"{_CALL[kind]}({expression(expr.a)}, {expression(expr.b)})"
    raise ValueError(f"{expr} is no sum, product, quotient, minimum or maximum of sizes")


def evaluator(expressions: Sequence[str | int], symbols: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function of the symbols' values, in order, that gives the expressions' values.

    Raises ValueError for text that :func:`expression` cannot have written, or for a symbol that is not given.
    """
    known = {*symbols, *_CALL.values()}
    for written in map(str, expressions):
        unknown = sorted({word for word in re.findall(r"[A-Za-z_]\w*", written) if word not in known})
        if not _SHAPE.fullmatch(written) or unknown:
            raise ValueError(f"{written!r} must be made of {', '.join(symbols) or 'numbers'}")
    arguments = ", ".join(symbols)
    values = "".join(f"{written}, " for written in expressions)
    made: Callable[..., tuple[int, ...]] = eval(
        f"lambda {arguments}: ({values})", {"__builtins__": {}, "min": min, "max": max})
    return made


def grid(func: Any) -> tuple[str, ...]:
    """The extents of a PrimFunc's grid, x first. Raises ValueError where it has none, or more than one."""
    from tilelang import tvm

    found: dict[str, Any] = {}
    nests = 0

    def visit(node: Any) -> None:
        nonlocal nests
        binding = getattr(node, "thread_binding", None)
        if binding is not None and str(binding.thread_tag).startswith("blockIdx."):
            tag = str(binding.thread_tag)
            nests += tag == "blockIdx.x"
            found[tag] = node.extent

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    if nests != 1:
        raise ValueError(f"a kernel needs exactly one T.Kernel, this one has {nests}")
    return tuple(expression(found[tag]) for tag in ("blockIdx.x", "blockIdx.y", "blockIdx.z") if tag in found)
