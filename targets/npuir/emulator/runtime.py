"""The fast runtime: what translated code calls, with bounds always checked and nothing else.

One runtime serves one run: it owns a UB arena and the global arguments. UB starts as 0xFF bytes in every
block, which are NaN in every float type, so that a result that depends on unwritten UB rarely looks right
even without the checked runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .library import Reach, Routine, RoutineError, around, dtype, itemsize

Shape = tuple[int, ...]

POISON = 0xFF
_FORMATS = {
    "f32": "f",
    "bf16": "H",
    "i64": "q",
    "i32": "i",
    "i16": "h",
    "i8": "b",
    "ui64": "Q",
    "ui32": "I",
    "ui16": "H",
    "ui8": "B",
    "f8E4M3FN": "B",
    "f8E5M2": "B",
}


class Violation(Exception):
    """Something the chip would not survive; `address` says where. Program.run adds op, block and
    instruction.
    """

    def __init__(self, what: str, address: str) -> None:
        super().__init__(f"{what} at {address}")
        self.what = what
        self.address = address


class FastRuntime:
    """Views, scalar accesses and library calls over one UB arena and the arguments of one run."""

    def __init__(
        self, routines: Sequence[Routine], arguments: Sequence[np.ndarray | None], ub_bytes: int
    ) -> None:
        """`arguments`: per argument of the kernel its flat array, or None where it is a scalar."""
        raw = np.empty(ub_bytes + 256, np.uint8)
        start = -raw.ctypes.data % 256
        self.arena = raw[start : start + ub_bytes]
        self.arena.fill(POISON)
        self.ub_bytes = ub_bytes
        self.arguments = list(arguments)
        self.bytes_read = 0
        self.bytes_written = 0
        self.block = 0
        self._views: dict[tuple[Any, ...], Any] = {}
        self._memories: dict[tuple[int, str], Any] = {}
        self.calls = [self.bind(number, routine) for number, routine in enumerate(routines)]

    def begin(self, block: int, blocks: int) -> None:
        self.block = block
        self.arena.fill(POISON)

    def end(self) -> None:
        """A block has finished."""

    # ---- views
    def ub(self, element: str, offset: int, shape: Shape, strides: Shape) -> Any:
        key = (element, offset, shape, strides)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self.array(self.arena, element, offset, shape, strides, "UB byte")
        return view

    def gm(self, argument: int, element: str, offset: int, shape: Shape, strides: Shape) -> Any:
        memory = self.arguments[argument]
        try:
            return np.ndarray(shape, _DTYPE[element], memory, offset, strides)
        except ValueError:
            return self.array(memory, element, offset, shape, strides, f"argument {argument} byte")

    @staticmethod
    def array(memory: Any, element: str, offset: int, shape: Shape, strides: Shape, where: str) -> np.ndarray:
        """A view. Errors: Violation if a byte of it lies outside of `memory`; an empty view has none."""
        kind = dtype(element)
        if any(n < 0 for n in shape):
            raise Violation(f"a view of {shape} elements", f"{where} {offset}")
        if 0 in shape:
            return np.empty(shape, kind)
        try:
            return np.ndarray(shape, kind, memory, offset, strides)
        except ValueError:
            last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + kind.itemsize - 1
            raise Violation(
                f"out of bounds: {shape} elements of {element} end at byte {last} of {memory.nbytes}",
                f"{where} {offset}",
            ) from None

    # ---- scalar accesses
    def memory(self, argument: int, element: str) -> Any:
        """An indexable view of all of UB (argument -1) or of an argument, of one element type."""
        key = (argument, element)
        memory = self._memories.get(key)
        if memory is None:
            array = self.arena if argument < 0 else self.arguments[argument]
            assert array is not None
            array = array.view(np.uint8)
            array = array[: array.size - array.size % itemsize(element)]
            if element in _FORMATS:
                memory = array.data.cast(_FORMATS[element])  # type: ignore[call-overload]
            else:
                memory = array.view(dtype(element))
            self._memories[key] = memory
        return memory

    def load_ub(self, element: str, base: int, offset: int) -> Any:
        if element == "i1":
            return (self.memory(-1, "ui8")[self.inside(base + (offset >> 3), "UB byte")] >> (offset & 7)) & 1
        index = self.element_index(element, base, offset)
        return self.scalar(self.memory(-1, element), index, element, "UB byte")

    def store_ub(self, element: str, base: int, offset: int, value: Any) -> None:
        if element == "i1":
            memory, index = self.memory(-1, "ui8"), self.inside(base + (offset >> 3), "UB byte")
            bit = 1 << (offset & 7)
            memory[index] = memory[index] | bit if value else memory[index] & ~bit
            return
        index = self.element_index(element, base, offset)
        self.set_scalar(self.memory(-1, element), index, element, value, "UB byte")

    def load_gm(self, argument: int, element: str, offset: int) -> Any:
        self.bytes_read += itemsize(element)
        return self.scalar(self.memory(argument, element), offset, element, f"argument {argument} byte")

    def store_gm(self, argument: int, element: str, offset: int, value: Any) -> None:
        self.bytes_written += itemsize(element)
        self.set_scalar(self.memory(argument, element), offset, element, value, f"argument {argument} byte")

    @staticmethod
    def inside(index: int, where: str) -> int:
        if index < 0:
            raise Violation("out of bounds", f"{where} {index}")
        return index

    @staticmethod
    def element_index(element: str, base: int, offset: int) -> int:
        size = itemsize(element)
        if base % size:
            raise Violation(
                f"a scalar {element} at an address that is no multiple of {size}", f"UB byte {base}"
            )
        return base // size + offset

    @staticmethod
    def scalar(memory: Any, index: int, element: str, where: str) -> Any:
        if 0 <= index < len(memory):
            value = memory[index]
            return value if element in _FORMATS else float(value)
        raise Violation(f"out of bounds: scalar load of {element}", f"{where} {index * itemsize(element)}")

    @staticmethod
    def set_scalar(memory: Any, index: int, element: str, value: Any, where: str) -> None:
        if 0 <= index < len(memory):
            memory[index] = value
            return
        raise Violation(f"out of bounds: scalar store of {element}", f"{where} {index * itemsize(element)}")

    # ---- library calls
    def bind(self, number: int, routine: Routine) -> Callable[..., None]:
        """The function that a call site calls."""
        body = routine.body
        if routine.reach:
            reach = routine.reach

            def spill(*operands: Any) -> None:
                body(*operands)
                for position, extent in reach:
                    overwrite_around(operands[position], extent, POISON)

            return spill
        if routine.pipe == "V":
            return body
        if routine.pipe == "MTE2":

            def load(source: Any, target: Any, *rest: Any) -> None:
                self.bytes_read += source.nbytes
                body(source, target, *rest)

            return load

        def store(source: Any, target: Any, *rest: Any) -> None:
            self.bytes_written += target.nbytes
            body(source, target, *rest)

        return store

    # ---- order and turns: only the checked runtime cares
    def set_flag(self, source: str, target: str, event: int) -> None: ...

    def wait_flag(self, source: str, target: str, event: int) -> None: ...

    def barrier(self, pipe: str) -> None: ...

    def enter(self, low: int, high: int, step: int) -> None: ...

    def turn(self) -> None: ...


def overwrite_around(view: np.ndarray, extent: Reach, byte: int) -> np.ndarray:
    """Fill what a body overwrites beside an operand, and return the whole of it."""
    shape, strides = extent(view.shape, view.strides, view.itemsize)
    whole = around(view, shape, strides)
    kept = view.copy()
    whole.view(np.dtype(f"u{view.itemsize}")).fill(int.from_bytes(bytes([byte]) * view.itemsize, "little"))
    view[...] = kept
    return whole


_DTYPE = {
    element: dtype(element)
    for element in ("f32", "f16", "bf16", "i64", "i32", "i16", "i8", "i1", "ui64", "ui32", "ui16", "ui8",
                    "f8E4M3FN", "f8E5M2")
}  # fmt: skip

__all__ = ["POISON", "FastRuntime", "RoutineError", "Violation"]
