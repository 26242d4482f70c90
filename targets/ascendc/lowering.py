"""PrimFunc to AscendC text: legalise, TileLang's Ascend backend, lint.

The number of threads is this module's to choose, as no source uses a thread's index: where TileLang finds no layout
for that many, or the text would run into its fault of reductions over part of a block, fewer are tried. Where none
helps, or TileLang cannot order the pipes by flags (it says so, and goes on), the next mode is tried: SIMT functions
only, and at last one SIMT function for the whole kernel.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monotile.compat.errors import LoweringError
from monotile.targets.spec import Target

MODE_VARIABLE = "MONOTILE_ASCENDC_MODE"
_UNSCHEDULED = {"tl.enable_auto_schedule": False}   # the pass that sets flags, and takes most of lowering's time
_SCALARS_ONLY = {"tirx.disable_vectorize": True}
_NO_LAYOUT = ("no available layout found", "does not form a bijective transform")
_BAD_FLAGS = re.compile("synchronization ring is malformed|reverse ordering too loose|dependency cycle")
_NO_FLAGS = "TileLang finds no flags that order the pipes"
_NO_VECTOR_TYPE = "cannot convert vector type"
SIMT = "simt"
WARP = 32


@dataclass(frozen=True)
class Launch:
    """What a launch of the text asks for."""

    blocks: int
    dynamic_ub_bytes: int


@dataclass(frozen=True)
class Text:
    """What was emitted, and how."""

    name: str
    text: str
    launch: Launch
    threads: int
    ub_bytes: int
    stages: int
    regions: tuple[str, ...]
    spilled: tuple[str, ...]


def mode() -> str:
    """``simd``, or ``dma`` or ``simt`` where MONOTILE_ASCENDC_MODE says so."""
    from monotile.targets.ascendc.legalise import MODES

    chosen = os.environ.get(MODE_VARIABLE, MODES[0])
    if chosen not in MODES:
        raise ValueError(f"{MODE_VARIABLE} must be one of {', '.join(MODES)}, got {chosen!r}")
    return chosen


def lower_to_text(func: Any, target: Target, op: str) -> Text:
    """AscendC of a PrimFunc. Raises LoweringError naming op, statement and source line."""
    from monotile.targets.ascendc.legalise import MODES

    why = ""
    for mode_ in MODES[MODES.index(mode()):]:   # each does less by itself than the one before
        if why == _NO_FLAGS and mode_ != SIMT:
            continue
        made = _in_mode(func, target, op, mode_)
        if isinstance(made, Text):
            return made
        why = why or made
    raise LoweringError(op, target.name, "emit", f"{why}, and no other number of threads avoids it; choose another "
                        "tiling")


def _in_mode(func: Any, target: Target, op: str, mode_: str) -> Text | str:
    """The text, with as many threads as TileLang gets right; or why there is none in this mode."""
    from monotile.targets.ascendc import lint
    from monotile.targets.ascendc.legalise import legalise
    from monotile.targets.ascendc.tir import Refused

    tried, why = set(), ""
    candidates: list[int | None] = [None]
    while candidates:
        threads = candidates.pop(0)
        try:
            legal = legalise(func, target.vector_cores, target.on_chip_bytes, mode_, threads)
            text, launch, flags_hold = _tilelang(legal.func, op, target, scheduled=mode_ != SIMT)
        except Refused as refused:
            line, statement = _source(refused.statement)
            raise LoweringError(op, target.name, "emit", str(refused), statement, line) from refused
        except LoweringError as error:
            if not any(words in error.reason for words in _NO_LAYOUT):
                raise
            fewer, why = [], error.reason
        else:
            if not flags_hold and mode_ != SIMT:   # not a matter of threads
                return _NO_FLAGS
            faults = lint.faults(text)
            if not faults:
                return Text(_name(text), text, launch, legal.threads, legal.ub_bytes, legal.stages,
                            tuple(legal.regions), tuple(legal.spilled))
            fewer, why = lint.group_sizes(text), f"{faults[0]} (a fault of TileLang)"
        tried.add(legal.threads)
        candidates += [n for n in (*fewer, WARP) if n >= WARP and n not in tried and n not in candidates]
    return why


def _tilelang(func: Any, op: str, target: Target, scheduled: bool) -> tuple[str, Launch, bool]:
    """(text, its launch, do its flags order the pipes). Where one pipe does all, nothing is to be ``scheduled``."""
    from tilelang import tvm
    from tilelang.engine.lower import lower

    from monotile.targets.ascendc import lint

    chip = tvm.target.Target({"kind": "ascend"})
    configs: Sequence[dict[str, Any]] = ({}, _SCALARS_ONLY)
    for config in configs:
        passes = config if scheduled else {**config, **_UNSCHEDULED}
        try:
            with _told() as told, chip, tvm.transform.PassContext(opt_level=3, config=passes):
                made = lower(func, target=chip, enable_device_compile=False)
                text = str(made.kernel_source)
            if config or not lint.needs_scalars(text):
                return text, _launch(made.device_mod), not any(map(_BAD_FLAGS.search, told))
        except Exception as error:   # TVM raises its own types; the reader needs the kernel's name and the reason
            if _NO_VECTOR_TYPE not in str(error) or config:
                raise LoweringError(op, target.name, "emit", _reason(error)) from error
    raise AssertionError("every configuration returns or raises")


def _launch(module: Any) -> Launch:
    """As TileLang's own launcher reads it: one grid dimension, and UB that the launch asks for."""
    (function,) = module.functions.values()
    blocks = function.attrs["thread_extent"]["blockIdx.x"]
    return Launch(int(blocks), int(function.attrs.get("dyn_shared_memory_buf", 0)))


@contextmanager
def _told() -> Iterator[list[str]]:
    """What C++ writes to stderr inside. Warnings about flags are acted upon; the rest is passed on."""
    lines: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.readlines()
            os.write(2, "".join(line for line in lines if not _BAD_FLAGS.search(line)).encode())


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("File")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:400]


def _name(text: str) -> str:
    found = re.search(r'extern "C" __global__ \S+ void (\w+)\(', text)
    if found is None:
        raise LoweringError("", "", "emit", "the text has no entry")
    return found.group(1)


def _source(statement: Any) -> tuple[str | None, str | None]:
    """(file:line, text) of a statement in the kernel's source."""
    if statement is None:
        return None, None
    from tilelang.ir import get_stmt_span

    span = get_stmt_span(statement)
    if span is None:
        return None, str(statement).strip().splitlines()[-1][:200]
    name, number = str(span.source_name.name), int(span.line)
    return f"{Path(name).name}:{number}", linecache.getline(name, number).strip()
