"""AscendC text made fit for the host's C++ compiler, compiled, and called.

Pointers with an address space become classes (``__ubuf__ T *`` is ``asc::ub<T>``, ``__gm__ T *`` is ``asc::gm<T>``),
which are plain pointers in the fast build and checked ones in the checked build. TileLang's own headers for reductions
and fp8 are used as they are, under the same replacement.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from monotile.compat import versions
from monotile.compat.errors import LoweringError, MonotileError, ToolchainMissing
from monotile.targets.cache import cached, key_of

HEADER = Path(__file__).with_name("asc.h")
REGISTERS = Path(__file__).with_name("simd.h")
# -O1: kernels are small and run once or twice. No contraction: the chip rounds every operation.
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off")
_CHECKED = "-DASC_CHECKED"
_OURS = ("acl/acl.h", "c_api/asc_simd.h", "simt_api/asc_bf16.h", "simt_api/asc_fp16.h", "simt_api/asc_fp8.h",
         "simt_api/asc_simt.h", "tl_templates/ascend/dcache_bypass.h", "tl_templates/ascend/debug.h",
         "tl_templates/ascend/simd_inst.h")   # what our header stands for
_THEIRS = ("common.h", "ascend_fp8.h", "numeric_limits.h", "reduce.h")
_TIMEOUT_S = 120
_ORDERS = (0, 1)   # of the threads: forwards, backwards

_POINTER = re.compile(r"__(gm|ubuf)__\s+(?:const\s+)?([\w:]+)\s*\*\s*(?:__restrict__\s*)?")
_UB_BASE = re.compile(r"\(asc::ub<([\w:]+)>\s*\)\s*(\d+)\s*;")
_READ_OF_SCRATCH = re.compile(r"red_buf\[([^\]]*)\](?!\s*=[^=])")
_TURN = re.compile(r"(for \(int32_t turn = 0; [^{]*\{)")
_SIMD = re.compile(r"(__simd_vf__ inline void \w+\([^)]*\) \{)")
_ENTRY = re.compile(r'extern "C" __global__ \S+ void (\w+)\(([^)]*)\)')


class AscendcFault(MonotileError, RuntimeError):
    """The kernel did something that the chip would not survive, or whose result depends on the order of threads."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op, self.reason = op, reason

    def __reduce__(self) -> tuple[object, ...]:
        return AscendcFault, (self.op, self.reason)


@dataclass(frozen=True)
class Parameter:
    """An argument of the entry: a tensor's, or a number's."""

    name: str
    is_tensor: bool
    kind: str = ""   # of a number, as the text writes it: int32_t


@dataclass(frozen=True)
class Moved:
    """What one run did. Of threads only checked runs know."""

    loaded: int              # bytes of global memory, by DMA
    stored: int
    simd_instructions: int   # of 64 lanes, barriers and masks included
    thread_accesses: int     # loads and stores of SIMT threads; a warp's 32 are one instruction
    thread_loaded: int       # bytes of global memory, by threads
    thread_stored: int


def parameters(text: str) -> list[Parameter]:
    """The entry's arguments in order. TileLang orders them by name."""
    found = _ENTRY.search(text)
    assert found is not None
    pieces = [p.strip() for p in found.group(2).split(",") if p.strip()]
    return [Parameter(p.rsplit(None, 1)[1].lstrip("*"), "*" in p, "" if "*" in p else p.rsplit(None, 1)[0])
            for p in pieces]


@functools.cache
def compiler() -> str:
    path = versions.cxx()
    if path is None:
        raise ToolchainMissing("the AscendC emulator needs a C++20 compiler, and neither g++ nor clang++ is on PATH: "
                               "install one (apt install g++)")
    return path


@functools.cache
def compiler_version() -> str:
    told = subprocess.run([compiler(), "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return told.splitlines()[0] if told else compiler()


def fingerprint() -> str:
    """What else than a text decides its builds: our header and this module."""
    return hashlib.sha256(HEADER.read_bytes() + REGISTERS.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]


def build(text: str, ub_bytes: int, folder: Path, op: str, target: str, mode: str) -> None:
    """Compile ``mode``'s build into ``folder`` as ``fast.so`` or ``checked.so``. Raises LoweringError."""
    source = folder / "host.cpp"
    source.write_text(host_source(text))
    extra = (_CHECKED,) if mode == "checked" else ()
    include = _headers(ub_bytes, extra)
    command = [compiler(), *_flags(ub_bytes), *extra, f"-I{include}", "-include", str(include / "asc.h"), str(source),
               "-o", str(folder / f"{mode}.so")]
    _compile(command, op, target)


def host_source(text: str) -> str:
    """The text with classes for pointers, the turns announced, and an entry that runs all blocks."""
    source = _UB_BASE.sub(r"asc::ub_at<\1>(\2);", _classes(text))
    before, mark, entry = source.partition('extern "C" __global__')   # a kernel's own loops may be called turn too
    source = before + mark + _TURN.sub(r"\1 asc::turn();", entry, count=1)
    source = _SIMD.sub(r"\1 asc::begin_simd();", source)
    found = _ENTRY.search(text)
    assert found is not None
    name, arguments = found.group(1), []
    for position, (declared, parameter) in enumerate(zip(found.group(2).split(","), parameters(text))):
        kind = declared.strip().rsplit(None, 1)[0]
        if parameter.is_tensor:
            item = _POINTER.search(declared.strip())
            assert item is not None
            arguments.append(f"ASC_TENSOR({item.group(2)}, {position})")
        else:
            arguments.append(f"({kind})numbers[{position}]")
    return f"""{source}
#ifdef ASC_CHECKED
#define ASC_TENSOR(T, i) asc::gm<T>(&tensors[i])
#else
#define ASC_TENSOR(T, i) ((T *)tensors[i].first)
#endif
extern "C" const char *asc_run(int64_t blocks, int order, asc::Argument *tensors, int64_t *numbers, uint64_t *moved) {{
  asc::blocks = blocks, asc::threads.order = order, asc::moved_in = asc::moved_out = asc::instructions = 0;
  asc::thread_accesses = asc::thread_in = asc::thread_out = 0;
  if (setjmp(asc::fault_exit)) return asc::fault_text;
  for (asc::block = 0; asc::block < blocks; ++asc::block) {{
    memset(asc::ub_bytes, 0xff, asc::UB_BYTES);
    for (auto &unit : asc::ub_units) unit = {{}};
    asc::turn();
    {name}({", ".join(arguments)});
    asc::check_flags();
  }}
  moved[0] = asc::moved_in, moved[1] = asc::moved_out, moved[2] = asc::instructions;
  moved[3] = asc::thread_accesses, moved[4] = asc::thread_in, moved[5] = asc::thread_out;
  return nullptr;
}}
"""


def _classes(text: str) -> str:
    names = {"gm": "gm", "ubuf": "ub"}
    return _POINTER.sub(lambda m: f"asc::{names[m.group(1)]}<{m.group(2)}> ", text).replace("> )", ">)")


def _flags(ub_bytes: int) -> tuple[str, ...]:
    return (*_FLAGS, f"-DASC_UB_BYTES={ub_bytes}")


def _headers(ub_bytes: int, extra: Sequence[str]) -> Path:
    """A folder of headers, ours precompiled: made once for a compiler, its flags and these sources."""
    import tilelang

    templates = Path(tilelang.__file__).parent / "src" / "tl_templates" / "ascend"
    theirs = {name: (templates / name).read_text() for name in _THEIRS}
    key = key_of(["asc headers", HEADER.read_text(), REGISTERS.read_text(), *theirs.values(), compiler_version(),
                  *_flags(ub_bytes), *extra])

    def make(folder: Path) -> None:
        for header in (HEADER, REGISTERS):
            (folder / header.name).write_text(header.read_text())
        for name in _OURS:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('#pragma once\n#include "asc.h"\n')
        for name, content in theirs.items():
            content = _READ_OF_SCRATCH.sub(r"asc::scratch(red_buf, \1)", _classes(content))
            (folder / "tl_templates" / "ascend" / name).write_text(content)
        _compile([compiler(), *_flags(ub_bytes), *extra, "-x", "c++-header", str(folder / "asc.h"), "-o",
                  str(folder / "asc.h.gch")], "the emulator's header", "this machine")

    folder, _ = cached(key, make, about={"headers": "AscendC emulator"})
    return folder


def _compile(command: list[str], op: str, target: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:400])
        raise LoweringError(op, target, "compile", f"{Path(command[0]).name} refuses the text for the emulator: "
                            f"{first.strip()[:400]}")


# ---------------------------------------------------------------------- running
class _Argument(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("end", ctypes.c_void_p), ("owner", ctypes.c_void_p),
                ("reader", ctypes.c_void_p)]


class Program:
    """A compiled kernel. ``run`` takes flat arrays and numbers by the entry's names."""

    def __init__(self, folder: Path, text: str, op: str) -> None:
        self.op, self.parameters = op, parameters(text)
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._folder = folder
        self._orders = _ORDERS if "__simt_vf__" in text else _ORDERS[:1]

    def run(self, tensors: dict[str, np.ndarray], numbers: dict[str, int], blocks: int, checked: bool) -> Moved:
        """Execute all blocks. Checked runs go through the threads, where there are any, in two orders and compare.

        Raises AscendcFault.
        """
        if not checked:
            return self._once("fast", 0, tensors, numbers, blocks)
        before = {name: array.copy() for name, array in tensors.items()}
        moved = self._once("checked", self._orders[0], tensors, numbers, blocks)
        for order in self._orders[1:]:
            again = {name: array.copy() for name, array in before.items()}
            self._once("checked", order, again, numbers, blocks)
            for name, array in tensors.items():
                if not np.array_equal(array.view(np.uint8), again[name].view(np.uint8)):
                    raise AscendcFault(self.op,
                                       f"{name} depends on the order in which threads run: a barrier is missing")
        return moved

    def _once(self, build: str, order: int, tensors: dict[str, np.ndarray], numbers: dict[str, int],
              blocks: int) -> Moved:
        library = self._libraries.get(build)
        if library is None:
            library = self._libraries[build] = ctypes.CDLL(str(self._folder / f"{build}.so"))
            library.asc_run.restype = ctypes.c_char_p
        arguments = (_Argument * len(self.parameters))()
        values = (ctypes.c_int64 * len(self.parameters))()
        kept = []   # the marks must outlive the call
        for position, parameter in enumerate(self.parameters):
            if not parameter.is_tensor:
                values[position] = numbers[parameter.name]
                continue
            array = tensors[parameter.name]
            assert array.flags.c_contiguous
            marks = np.zeros((2, array.nbytes if build == "checked" else 0), np.int32)
            kept.append(marks)
            first = array.ctypes.data
            arguments[position] = _Argument(first, first + array.nbytes, *(
                (marks[0].ctypes.data, marks[1].ctypes.data) if build == "checked" else (None, None)))
        moved = (ctypes.c_uint64 * len(fields(Moved)))()
        told = library.asc_run(ctypes.c_int64(blocks), ctypes.c_int(order), arguments, values, moved)
        if told is not None:
            raise AscendcFault(self.op, told.decode())
        return Moved(*map(int, moved))


__all__ = ["AscendcFault", "Moved", "Parameter", "Program", "build", "compiler", "compiler_version", "fingerprint",
           "host_source", "parameters"]
