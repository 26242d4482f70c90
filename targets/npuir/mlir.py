"""Text of an MLIR function under construction: names, constants, blocks and memref types.

Nothing here knows TIR or what an operation means. Three places receive operations:

* the *entry*, where constants and the arguments' sizes go;
* the *turn prologue*, executed once at the top of every turn of the persistent loop, where small tiles that a
  whole turn reads (index ramps, broadcast constants) are made;
* the current position in the body.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

ITEM_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}
FLOATS = ("f32", "f16", "bf16")

_INFINITY_BITS = {"f32": "7F800000", "f16": "7C00", "bf16": "7F80"}
_NEGATIVE_INFINITY_BITS = {"f32": "FF800000", "f16": "FC00", "bf16": "FF80"}
_NAN_BITS = {"f32": "7FC00000", "f16": "7E00", "bf16": "7FC0"}


def memref(sizes: Sequence[int | str], element: str, space: str, strides: Sequence[int | str] | None = None,
           offset: int | str = 0) -> str:
    """``memref<4x?xf32, strided<[8, 1], offset: ?>, #hivm.address_space<ub>>``; a name instead of a number is ``?``."""
    def number(value: int | str) -> str:
        return str(value) if isinstance(value, int) else "?"

    layout = ""
    if strides is not None:
        shown = f", offset: {number(offset)}" if offset != 0 else ""
        layout = f", strided<[{', '.join(map(number, strides))}]{shown}>"
    shape = "".join(f"{number(size)}x" for size in sizes)
    return f"memref<{shape}{element}{layout}, #hivm.address_space<{space}>>"


def literal(value: float | int | bool, element: str) -> str:
    if element == "i1":
        return "true" if value else "false"
    if element not in FLOATS:
        return str(int(value))
    if math.isnan(value):
        return f"0x{_NAN_BITS[element]}"
    if math.isinf(value):
        return f"0x{(_INFINITY_BITS if value > 0 else _NEGATIVE_INFINITY_BITS)[element]}"
    return f"{float(value):.17e}"


@dataclass
class Lines:
    indent: int
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append("  " * self.indent + line)


class Writer:
    """Collects the operations of one function."""

    def __init__(self) -> None:
        self.entry = Lines(1)
        self.body = Lines(1)
        self._constants: dict[tuple[str, str], tuple[str, str]] = {}
        self._next = 0
        self._prologue: Lines | None = None
        self._prologue_at = 0

    def fresh(self, stem: str = "v") -> str:
        self._next += 1
        return f"%{stem}{self._next}"

    def constant(self, value: float | int | bool, element: str = "index") -> str:
        """The name of a constant, defined once at the function's entry."""
        key = (repr(value), element)
        if key not in self._constants:
            text = literal(value, element)
            suffix = "" if element == "i1" else f" : {element}"
            self._constants[key] = (f"%c{len(self._constants)}", f"arith.constant {text}{suffix}")
        return self._constants[key][0]

    def add(self, line: str) -> None:
        self.body.add(line)

    def define(self, operation: str, stem: str = "v") -> str:
        name = self.fresh(stem)
        self.body.add(f"{name} = {operation}")
        return name

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """``header {`` ... ``}``."""
        self.body.add(header + " {")
        self.body.indent += 1
        yield
        self.body.indent -= 1
        self.body.add("}")

    def otherwise(self) -> None:
        """Turn the open block into its else branch."""
        self.body.lines.append("  " * (self.body.indent - 1) + "} else {")

    def open_prologue(self) -> None:
        """The turn prologue is here; it is filled while the body is written."""
        self._prologue, self._prologue_at = Lines(self.body.indent), len(self.body.lines)

    @contextmanager
    def in_prologue(self) -> Iterator[None]:
        if self._prologue is None:
            yield
            return
        body, self.body = self.body, self._prologue
        try:
            yield
        finally:
            self.body = body

    def close_prologue(self) -> None:
        if self._prologue is not None:
            self.body.lines[self._prologue_at:self._prologue_at] = self._prologue.lines
            self._prologue = None

    # A statement may be tried one way and, where that does not fit the hardware, emitted another way.
    def mark(self) -> tuple[int, int, int]:
        return len(self.body.lines), len(self._prologue.lines) if self._prologue else 0, self.body.indent

    def rewind(self, mark: tuple[int, int, int]) -> None:
        del self.body.lines[mark[0]:]
        self.body.indent = mark[2]
        if self._prologue is not None:
            del self._prologue.lines[mark[1]:]

    def text(self) -> list[str]:
        constants = [f"  {name} = {operation}" for name, operation in self._constants.values()]
        return constants + self.entry.lines + self.body.lines
