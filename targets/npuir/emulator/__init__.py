"""Execute the final IR of Huawei's AscendNPU-IR compiler on this machine's CPU.

The IR after the vendor's whole pipeline (UB addresses planned, flags and barriers inserted, operations
replaced by library calls) is translated once to Python over NumPy views (translate.py), the library calls
have NumPy bodies (library.py) that tests compare with the vendor's own bitcode, and a run executes the blocks
one after another. It is functional, not timed.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import numpy as np

from monotile.compat.errors import MonotileError

from . import checks, runtime
from .library import RoutineError, UnknownRoutine, dtype, itemsize, resolve
from .parse import IRSyntaxError
from .translate import HELPERS, Parameter, Translation, UntranslatableIR, translate

__all__ = [
    "EmulatorFault",
    "IRSyntaxError",
    "Parameter",
    "Program",
    "Report",
    "UnknownRoutine",
    "UntranslatableIR",
]


class EmulatorFault(MonotileError, RuntimeError):
    """The kernel did something that the chip would not survive, or would not do in that order."""

    def __init__(self, op: str, block: int, instruction: str, reason: str, address: str = "") -> None:
        super().__init__(f"{op}: block {block}: {reason}\n  at {instruction}")
        self.op = op
        self.block = block
        self.instruction = instruction
        self.reason = reason
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return EmulatorFault, (self.op, self.block, self.instruction, self.reason, self.address)


@dataclass(frozen=True)
class Report:
    """What one run did."""

    blocks: int
    seconds: float
    bytes_read: int  # from global memory, by loads and scalar loads
    bytes_written: int
    calls: dict[str, int]  # library call -> times executed, all blocks together
    scalar_loads: int
    scalar_stores: int
    findings: tuple[str, ...] = ()  # checked runs: what was checked, and what is odd without being a fault


@dataclass
class Program:
    """A translated kernel. Can be pickled, and run by several threads at once."""

    op: str
    ub_bytes: int
    translation: Translation
    _code: dict[bool, CodeType] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_ir(cls, generic_ir: str, *, op: str, ub_bytes: int) -> Program:
        """Parse and translate a module in MLIR's generic form. `op` names it in errors; `ub_bytes` is UB's
        size.

        Errors: IRSyntaxError, UntranslatableIR, UnknownRoutine, each naming what it met.
        """
        return cls(op, ub_bytes, translate(generic_ir))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments of the entry function, in order."""
        return self.translation.parameters

    @property
    def ub_used(self) -> int:
        """Bytes of UB up to the end of the highest buffer."""
        return self.translation.ub_used

    @property
    def calls(self) -> tuple[str, ...]:
        """The library calls in the IR, each once, in order of appearance."""
        return tuple(dict.fromkeys(site.routine for site in self.translation.sites))

    def run(
        self,
        args: Sequence[np.ndarray | int],
        *,
        blocks: int,
        checked: bool = False,
        ordered_blocks: Sequence[int] | None = None,
    ) -> Report:
        """Execute blocks 0 .. blocks-1 in turn, writing into the arrays.

        args: one for each of `parameters`: for a tensor a contiguous array whose element has the parameter's
        size (bf16 as uint16, f16 as float16, 8 bits as int8 or uint8, i1 as uint8), for a scalar an int.
        checked: also check alignment, unwritten UB, block races and pipe order; see checks.py.
        ordered_blocks: blocks in which pipe order is checked; None takes the first and the one with the last
        tile.

        Errors: ValueError if an argument does not fit its parameter; EmulatorFault.
        """
        if blocks < 1:
            raise ValueError(f"blocks is {blocks}: at least one block is needed")
        tensors = self._tensors(args)
        values = [a if t is None else None for a, t in zip(args, tensors, strict=True)]
        routines = [resolve(site.routine, site.operands) for site in self.translation.sites]
        machine: runtime.FastRuntime
        if checked:
            parameters = self.parameters
            machine = checks.CheckedRuntime(
                routines,
                tensors,
                self.ub_bytes,
                origins=[f"line {site.line}" for site in self.translation.sites],
                granules=self.translation.granules,
                shared=[k for k, p in enumerate(parameters) if p.read and p.written],
                sample=ordered_blocks,
            )
        else:
            machine = runtime.FastRuntime(routines, tensors, self.ub_bytes)
        totals = np.zeros(len(routines) + 2, np.int64)
        start = time.perf_counter()
        block = 0
        try:
            with np.errstate(all="ignore"):
                kernel = self._load(checked)(machine)
                for block in range(blocks):
                    machine.begin(block, blocks)
                    totals += kernel(values, block, blocks)
                    machine.end()
        except Exception as error:
            raise self._fault(error, block, checked) from error
        seconds = time.perf_counter() - start
        counts: Counter[str] = Counter()
        for site, count in zip(self.translation.sites, totals.tolist(), strict=False):
            counts[site.routine] += count
        findings: tuple[str, ...] = ()
        if isinstance(machine, checks.CheckedRuntime):
            findings = (f"pipe order checked in blocks {machine.ordered_blocks}",)
        return Report(
            blocks, seconds, machine.bytes_read, machine.bytes_written, dict(counts),
            int(totals[-2]), int(totals[-1]), findings,
        )  # fmt: skip

    def _tensors(self, args: Sequence[np.ndarray | int]) -> list[np.ndarray | None]:
        """Flat arrays of the parameters' dtypes, None for scalars."""
        if len(args) != len(self.parameters):
            raise ValueError(f"{self.op}: {len(args)} arguments given, {len(self.parameters)} needed")
        tensors: list[np.ndarray | None] = []
        for number, (arg, parameter) in enumerate(zip(args, self.parameters, strict=True)):
            if parameter.kind == "scalar":
                if isinstance(arg, np.ndarray):
                    raise ValueError(f"{self.op}: argument {number} is an array, {parameter.dtype} is needed")
                tensors.append(None)
                continue
            if not isinstance(arg, np.ndarray):
                raise ValueError(
                    f"{self.op}: argument {number} is {arg!r}, an array of {parameter.dtype} is needed"
                )
            if arg.itemsize != itemsize(parameter.dtype) or not arg.flags.c_contiguous:
                raise ValueError(
                    f"{self.op}: argument {number} is {arg.dtype} with strides {arg.strides}, "
                    f"a contiguous array of {parameter.dtype} is needed"
                )
            tensors.append(arg.reshape(-1).view(dtype(parameter.dtype)))
        return tensors

    def _load(self, checked: bool) -> Callable[[runtime.FastRuntime], Callable[..., Any]]:
        code = self._code.get(checked)
        if code is None:
            source = self.translation.checked if checked else self.translation.fast
            code = self._code[checked] = compile(source, self._filename, "exec")
        namespace: dict[str, Any] = dict(HELPERS)
        exec(code, namespace)
        return namespace["make"]  # type: ignore[no-any-return]

    @property
    def _filename(self) -> str:
        return f"<npuir {self.op}>"

    def _fault(self, error: Exception, block: int, checked: bool) -> EmulatorFault:
        """The fault for an exception out of translated code, with the IR of the line that raised it."""
        origin = self.translation.checked_origin if checked else self.translation.fast_origin
        instruction = "the end of the kernel"
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == self._filename:
                instruction = origin.get(line, "the start of the kernel")
        if isinstance(error, runtime.Violation):
            return EmulatorFault(self.op, block, instruction, str(error), error.address)
        reason = str(error) if isinstance(error, RoutineError) else f"{type(error).__name__}: {error}"
        return EmulatorFault(self.op, block, instruction, reason)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_code": {}}
