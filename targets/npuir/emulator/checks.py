"""The checked runtime: every call is also checked for what the chip cannot do or does not order.

- **alignment**: an operand in UB starts at a multiple of 32 bytes, its rows too, and its last axis is
  contiguous (the vendor's bodies ignore a stride there); a DMA may step over elements if each is a block of
  its own in UB;
- **unwritten UB**: a shadow byte for each byte of UB says whether it was written. It is cleared, and UB
  poisoned, at every turn of the persistent loop, so that the previous turn's tile cannot stand in for a tail
  nobody filled. What was written before the loop stays written: it is meant to last. Scratch operands, and
  what a body overwrites beside its result, count as unwritten after a call;
- **two blocks**: no byte of global memory is written by two blocks, or written by one and read by another;
- **pipe order** (on some blocks): the scalar, vector and two DMA pipes run at the same time and within V,
  MTE2 and MTE3 nothing is in order but by pipe_barrier. Vector clocks over set_flag, wait_flag and
  pipe_barrier decide whether the last write or read of each 32 bytes of UB is known to have finished. Waits
  without a set and flags left set count too.

The first violation stops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .library import Routine, dtype, itemsize, padding
from .runtime import POISON, FastRuntime, Shape, Violation, overwrite_around

GRAIN = 32  # bytes of UB that pipe order is tracked in; also the alignment that instructions need
_PIPES = {"S": 0, "V": 1, "MTE2": 2, "MTE3": 3}
_ALWAYS = 1 << 30  # "all of that pipe's instructions have finished"
_UNSIGNED = {1: "ui8", 2: "ui16", 4: "ui32", 8: "ui64"}
_MANY = -1  # more than one block read this; also: written atomically

Blocks = slice | np.ndarray


class _Operand:
    """A view and what the checks need to know about it."""

    __slots__ = (
        "argument",
        "array",
        "column",
        "fault",
        "full",
        "grains",
        "owner",
        "reader",
        "shadow",
        "start",
        "window",
    )

    def __init__(self, array: np.ndarray, start: int, argument: int) -> None:
        self.array = array
        self.start = start
        self.argument = argument  # -1: UB
        self.fault = ""  # why the address cannot be used, if it cannot
        self.column = ""  # the same, if the last axis is 1 and rows may follow each other
        self.full = 0
        self.shadow: Any = None
        self.grains: Blocks = slice(0, 0)
        self.owner: Any = None
        self.reader: Any = None
        self.window: tuple[int, Shape, Shape] = (0, (), ())

    @property
    def address(self) -> str:
        return f"UB byte {self.start}" if self.argument < 0 else f"argument {self.argument} byte {self.start}"


class CheckedRuntime(FastRuntime):
    """See the module's text. `sample`: blocks in which pipe order is checked; None chooses the first and the
    tail.
    """

    def __init__(
        self,
        routines: Sequence[Routine],
        arguments: Sequence[np.ndarray | None],
        ub_bytes: int,
        *,
        origins: Sequence[str],
        granules: dict[int, int],
        shared: Sequence[int],
        sample: Sequence[int] | None = None,
    ) -> None:
        """`origins`: per call site its place in the IR. `granules`: bytes in which an argument's owners are
        kept.
        `shared`: arguments that are both read and written."""
        super().__init__(routines, arguments, ub_bytes)
        self.origins = origins
        self.granules = granules
        self.shared = frozenset(shared)
        self.sample = sample
        self.tail: int | None = None
        raw = np.zeros(ub_bytes + 256, np.uint8)
        self.shadow = raw[:ub_bytes]
        self.lasting: np.ndarray | None = None  # shadow at the entry of the persistent loop
        self.owners: dict[tuple[int, int], np.ndarray] = {}
        self.readers: dict[tuple[int, int], np.ndarray] = {}
        self.ordering = False
        self.order = _PipeOrder(ub_bytes)
        self.ordered_blocks: list[int] = []
        self.turns = 0

    # ---- blocks and turns
    def begin(self, block: int, blocks: int) -> None:
        super().begin(block, blocks)
        self.shadow.fill(0)
        self.lasting = None
        self.turns = 0
        tail = blocks - 1 if self.tail is None else self.tail
        self.ordering = block in ((0, tail) if self.sample is None else self.sample)
        if self.ordering:
            self.ordered_blocks.append(block)
        self.order = _PipeOrder(self.ub_bytes)

    def enter(self, low: int, high: int, step: int) -> None:
        if self.block == 0 and self.tail is None and high > low:
            self.tail = (high - 1 - low) % step

    def turn(self) -> None:
        self.turns += 1
        if self.lasting is None:
            self.lasting = self.shadow.copy()
            return
        if self.lasting.any():
            gone = self.lasting == 0
            self.arena[gone] = POISON
        else:
            self.arena.fill(POISON)
        np.copyto(self.shadow, self.lasting)

    def end(self) -> None:
        if self.ordering:
            self.order.end()

    # ---- views
    def ub(self, element: str, offset: int, shape: Shape, strides: Shape) -> Any:
        key = (element, offset, shape, strides)
        operand = self._views.get(key)
        if operand is None:
            operand = _Operand(self.array(self.arena, element, offset, shape, strides, "UB byte"), offset, -1)
            size = dtype(element).itemsize
            operand.full = (1 << (8 * size)) - 1
            operand.shadow = self.array(self.shadow, f"ui{8 * size}", offset, shape, strides, "UB byte")
            operand.grains = grains(offset, shape, strides, size)
            operand.fault = misalignment(offset, shape, strides, size)
            operand.column = operand.fault and misalignment(offset, shape[:-1], strides[:-1], size)
            self._views[key] = operand
        return operand

    def gm(self, argument: int, element: str, offset: int, shape: Shape, strides: Shape) -> Any:
        operand = _Operand(super().gm(argument, element, offset, shape, strides), offset, argument)
        operand.window = self.window(argument, element, offset, shape, strides)
        return operand

    def window(
        self, argument: int, element: str, offset: int, shape: Shape, strides: Shape
    ) -> tuple[int, Shape, Shape]:
        """A view in units of the argument's granules; an element of several granules gets one more axis."""
        granule = self.granules[argument]
        size = itemsize(element)
        strides = tuple(s // granule for s in strides)
        if size > granule:
            shape, strides = (*shape, size // granule), (*strides, 1)
        return offset // granule, shape, strides

    def marks(self, table: dict[tuple[int, int], np.ndarray], argument: int) -> np.ndarray:
        """The block numbers (from 1) of an argument's granules; equal memory has one table."""
        array = self.arguments[argument]
        assert array is not None
        key = (array.ctypes.data, array.nbytes)
        if key not in table:
            table[key] = np.zeros(array.nbytes // self.granules[argument], np.int32)
        return table[key]

    # ---- global memory
    def note_write(self, operand: _Operand, atomic: bool) -> None:
        me = self.block + 1
        owner = _apply(self.marks(self.owners, operand.argument), operand.window)
        others = (owner != 0) & (owner != (_MANY if atomic else me))
        if others.any():
            raise self.global_violation("two blocks write one place", operand, owner, others)
        owner[...] = _MANY if atomic else me
        if operand.argument in self.shared:
            reader = _apply(self.marks(self.readers, operand.argument), operand.window)
            others = (reader != 0) & (reader != me)
            if others.any():
                raise self.global_violation("a block writes what another reads", operand, reader, others)

    def note_read(self, operand: _Operand) -> None:
        if operand.argument not in self.shared:
            return
        me = self.block + 1
        owner = _apply(self.marks(self.owners, operand.argument), operand.window)
        others = (owner != 0) & (owner != me)
        if others.any():
            raise self.global_violation("a block reads what another writes", operand, owner, others)
        reader = _apply(self.marks(self.readers, operand.argument), operand.window)
        reader[...] = np.where((reader == 0) | (reader == me), me, _MANY)

    def global_violation(
        self, what: str, operand: _Operand, marks: np.ndarray, others: np.ndarray
    ) -> Violation:
        where = np.unravel_index(int(np.argmax(others)), others.shape)
        offset, _, strides = operand.window
        granule = self.granules[operand.argument]
        byte = (offset + sum(int(i) * s for i, s in zip(where, strides, strict=True))) * granule
        other = int(marks[where]) - 1
        named = f"block {other}" if other >= 0 else "several blocks"
        return Violation(
            f"{what}: block {self.block} and {named}", f"argument {operand.argument} byte {byte}"
        )

    # ---- UB
    def check_written(self, operand: _Operand, what: str) -> None:
        shadow = operand.shadow
        if shadow.size and np.minimum.reduce(shadow, axis=None) != operand.full:
            missing = shadow != operand.full
            first = np.unravel_index(int(np.argmax(missing)), missing.shape)
            byte = operand.start + sum(int(i) * s for i, s in zip(first, shadow.strides, strict=True))
            count = int(missing.sum())
            raise Violation(
                f"{what} reads {count} of {missing.size} elements of UB that nobody wrote", f"UB byte {byte}"
            )

    # ---- library calls
    def bind(self, number: int, routine: Routine) -> Callable[..., None]:
        run = super().bind(number, routine)
        reads, writes, temporaries = routine.reads, routine.writes, routine.temporaries
        pipe = _PIPES[routine.pipe]
        name = routine.name
        dma = routine.pipe != "V"

        def check_address(position: int, operand: _Operand, operands: Sequence[Any]) -> None:
            if not operand.array.size:
                return
            if position in routine.columns and operand.array.shape[-1] == 1:
                fault = operand.column
            elif dma and operand.argument < 0:
                fault = dma_misalignment(operand, operands[1 - position])
            else:
                fault = operand.fault
            if fault:
                raise Violation(f"{name}: {fault}", operand.address)

        def call(*operands: Any) -> None:
            for position in (*reads, *writes, *temporaries):
                check_address(position, operands[position], operands)
            for position in reads:
                operand = operands[position]
                if operand.argument < 0:
                    self.check_written(operand, name)
                else:
                    self.note_read(operand)
            for position in temporaries:
                scratch = operands[position]
                scratch.shadow.fill(0)
                scratch.array.view(scratch.shadow.dtype).fill(scratch.full)
            run(*[o.array if type(o) is _Operand else o for o in operands])
            atomic = routine.atomic is not None and bool(operands[routine.atomic])
            for position in writes:
                operand = operands[position]
                if operand.argument < 0:
                    operand.shadow.fill(operand.full)
                else:
                    self.note_write(operand, atomic)
            if routine.padding is not None and (operands[routine.padding] or operands[routine.padding + 2]):
                for part in padding(operands[1].shadow, operands[routine.padding + 2]):
                    part.fill(operands[1].full)
            beside: list[_Operand] = []
            for position, extent in routine.reach:
                operand = operands[position]
                whole = overwrite_around(operand.shadow, extent, 0)
                start = operand.start
                beside.append(self.ub(_UNSIGNED[whole.itemsize], start, whole.shape, whole.strides))
            if self.ordering:
                self.access(
                    pipe,
                    f"{name} ({self.origins[number]})",
                    [operands[k] for k in reads],
                    [operands[k] for k in (*writes, *temporaries)] + beside,
                )

        return call

    def access(self, pipe: int, what: str, reads: Sequence[_Operand], writes: Sequence[_Operand]) -> None:
        order = self.order
        order.next(pipe, what)
        for operand in reads:
            if operand.argument < 0:
                order.read(pipe, operand.grains)
            elif operand.argument in self.shared:
                order.read_global(pipe, self.order_key(operand), operand.window)
        for operand in writes:
            if operand.argument < 0:
                order.write(pipe, operand.grains)
            elif operand.argument in self.shared:
                order.write_global(pipe, self.order_key(operand), operand.window)

    def order_key(self, operand: _Operand) -> tuple[int, int, int]:
        array = self.arguments[operand.argument]
        assert array is not None
        return array.ctypes.data, array.nbytes // self.granules[operand.argument], operand.argument

    # ---- scalar accesses
    def load_ub(self, element: str, base: int, offset: int) -> Any:
        value = super().load_ub(element, base, offset)
        operand = self.scalar_operand(element, base, offset)
        self.check_written(operand, "a scalar load")
        if self.ordering:
            self.access(0, "a scalar load", [operand], [])
        return value

    def store_ub(self, element: str, base: int, offset: int, value: Any) -> None:
        super().store_ub(element, base, offset, value)
        operand = self.scalar_operand(element, base, offset)
        operand.shadow.fill(operand.full)
        if self.ordering:
            self.access(0, "a scalar store", [], [operand])

    def scalar_operand(self, element: str, base: int, offset: int) -> _Operand:
        byte = base + (offset >> 3 if element == "i1" else offset * itemsize(element))
        operand = self.ub(element, byte, (1,), (itemsize(element),))
        assert isinstance(operand, _Operand)
        return operand

    def load_gm(self, argument: int, element: str, offset: int) -> Any:
        value = super().load_gm(argument, element, offset)
        if argument in self.shared:
            operand = self.gm(argument, element, offset * itemsize(element), (1,), (itemsize(element),))
            self.note_read(operand)
            if self.ordering:
                self.access(0, "a scalar load", [operand], [])
        return value

    def store_gm(self, argument: int, element: str, offset: int, value: Any) -> None:
        super().store_gm(argument, element, offset, value)
        operand = self.gm(argument, element, offset * itemsize(element), (1,), (itemsize(element),))
        self.note_write(operand, atomic=False)
        if self.ordering:
            self.access(0, "a scalar store", [], [operand])

    # ---- flags
    def set_flag(self, source: str, target: str, event: int) -> None:
        if self.ordering:
            self.order.set_flag(source, target, event)

    def wait_flag(self, source: str, target: str, event: int) -> None:
        if self.ordering:
            self.order.wait_flag(source, target, event)

    def barrier(self, pipe: str) -> None:
        if self.ordering:
            self.order.barrier(pipe)


class _PipeOrder:
    """Happens-before between the pipes of one block, by vector clocks.

    Instructions of a pipe are numbered from 1. known[p][q] is the number up to which pipe q's instructions
    have finished when the next instruction of pipe p starts.
    """

    def __init__(self, ub_bytes: int) -> None:
        pipes = len(_PIPES)
        self.count = [0] * pipes
        self.names: list[list[str]] = [[""] for _ in range(pipes)]
        self.known = [[0] * pipes for _ in range(pipes)]
        self.known[0][0] = _ALWAYS  # the scalar pipe is in order with itself
        table = np.zeros((2 * pipes, -(-ub_bytes // GRAIN)), np.int32)
        self.table = table
        self.written, self.reading = table[:pipes], table[pipes:]
        self.flags: dict[tuple[str, str, int], list[list[int]]] = {}
        self.globals: dict[tuple[int, int, int], np.ndarray] = {}

    def next(self, pipe: int, what: str) -> None:
        self.count[pipe] += 1
        self.names[pipe].append(what)

    def read(self, pipe: int, where: Blocks) -> None:
        last = np.maximum.reduce(self.written[:, where], axis=1, initial=0).tolist()
        self.compare(pipe, last, "reads before it is written", where)
        self.reading[pipe, where] = self.count[pipe]

    def write(self, pipe: int, where: Blocks) -> None:
        last = np.maximum.reduce(self.table[:, where], axis=1, initial=0).tolist()
        pipes = len(_PIPES)
        self.compare(pipe, last[:pipes], "writes before it is written", where)
        self.compare(pipe, last[pipes:], "writes before it is read", where)
        self.written[pipe, where] = self.count[pipe]

    def compare(self, pipe: int, last: Sequence[int], what: str, where: Blocks | str) -> None:
        known = self.known[pipe]
        for other, number in enumerate(last):
            if number <= known[other] or (other == pipe and number == self.count[pipe]):
                continue
            if isinstance(where, str):
                address = where
            else:
                first = where.start if isinstance(where, slice) else int(where[0])
                address = f"UB byte {first * GRAIN}"
            raise Violation(
                f"race: {self.names[pipe][-1]} {what} by {self.names[other][number]}, "
                "and no flag or barrier orders them",
                address,
            )

    def _global(self, key: tuple[int, int, int]) -> np.ndarray:
        table = self.globals.get(key)
        if table is None:
            table = self.globals[key] = np.zeros((2 * len(_PIPES), key[1]), np.int32)
        return table

    def read_global(self, pipe: int, key: tuple[int, int, int], window: tuple[int, Shape, Shape]) -> None:
        table = self._global(key)
        last = [int(_apply(row, window).max(initial=0)) for row in table[: len(_PIPES)]]
        self.compare(pipe, last, "reads before it is written", f"argument {key[2]}")
        _apply(table[len(_PIPES) + pipe], window)[...] = self.count[pipe]

    def write_global(self, pipe: int, key: tuple[int, int, int], window: tuple[int, Shape, Shape]) -> None:
        table = self._global(key)
        last = [int(_apply(row, window).max(initial=0)) for row in table]
        pipes = len(_PIPES)
        self.compare(pipe, last[:pipes], "writes before it is written", f"argument {key[2]}")
        self.compare(pipe, last[pipes:], "writes before it is read", f"argument {key[2]}")
        _apply(table[pipe], window)[...] = self.count[pipe]

    def set_flag(self, source: str, target: str, event: int) -> None:
        pipe = _PIPES[source]
        clock = list(self.known[pipe])
        clock[pipe] = self.count[pipe]  # a flag is set when all before it in its pipe has finished
        self.flags.setdefault((source, target, event), []).append(clock)

    def wait_flag(self, source: str, target: str, event: int) -> None:
        waiting = self.flags.get((source, target, event))
        if not waiting:
            raise Violation("wait_flag for a flag that nobody sets", f"{source} to {target}, event {event}")
        clock = waiting.pop(0)
        known = self.known[_PIPES[target]]
        for pipe, number in enumerate(clock):
            known[pipe] = max(known[pipe], number)

    def barrier(self, name: str) -> None:
        if name == "ALL":
            for known in self.known:
                for pipe, number in enumerate(self.count):
                    known[pipe] = max(known[pipe], number)
            return
        pipe = _PIPES[name]
        self.known[pipe][pipe] = max(self.known[pipe][pipe], self.count[pipe])

    def end(self) -> None:
        for (source, target, event), clocks in self.flags.items():
            if clocks:
                raise Violation(
                    "a flag is left set at the end of the kernel", f"{source} to {target}, event {event}"
                )


def _apply(table: np.ndarray, window: tuple[int, Shape, Shape]) -> np.ndarray:
    """The entries of a table that a window covers."""
    offset, shape, strides = window
    if 0 in shape:
        return np.empty(shape, table.dtype)
    size = table.itemsize
    return np.ndarray(shape, table.dtype, table, offset * size, tuple(s * size for s in strides))


def grains(offset: int, shape: Shape, strides: Shape, size: int) -> Blocks:
    """The 32-byte pieces of UB that a view touches, as a slice where they are neighbours."""
    if 0 in shape:
        return slice(0, 0)
    end = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + size
    elements = int(np.prod(shape, dtype=np.int64))
    if elements * size >= end - offset - GRAIN:
        return slice(offset // GRAIN, -(-end // GRAIN))
    starts = np.full(1, offset, np.int64)
    for n, s in zip(shape, strides, strict=True):
        starts = (starts[:, None] + np.arange(n, dtype=np.int64) * s).ravel()
    pieces = np.unique(np.concatenate([starts // GRAIN, (starts + size - 1) // GRAIN]))
    if pieces[-1] - pieces[0] + 1 == len(pieces):
        return slice(int(pieces[0]), int(pieces[-1]) + 1)
    return pieces


def dma_misalignment(operand: _Operand, other: _Operand) -> str:
    """Why a DMA cannot address this view of UB: where elements are apart on either side, each needs its own
    block.
    """
    shape, strides, size = operand.array.shape, operand.array.strides, operand.array.itemsize
    apart = len(shape) == 1 and shape[0] > 1 and (strides[0] != size or other.array.strides[0] != size)
    if apart:
        if operand.start % GRAIN or strides[0] % GRAIN:
            return f"elements {strides[0]} bytes apart in UB where the DMA takes or leaves one a block"
        return ""
    return operand.fault


def misalignment(offset: int, shape: Shape, strides: Shape, size: int) -> str:
    """Why a vector or DMA instruction cannot address this view of UB; empty if it can."""
    if offset % GRAIN:
        return f"an address that is no multiple of {GRAIN} bytes"
    for n, s in zip(shape[:-1], strides[:-1], strict=True):
        if n > 1 and s % GRAIN:
            return f"rows {s} bytes apart, no multiple of {GRAIN}"
    if shape and shape[-1] > 1 and strides[-1] != size:
        return f"elements {strides[-1]} bytes apart along the last axis"
    return ""
