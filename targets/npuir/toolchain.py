"""Huawei's compiler for AscendNPU-IR: find it, run it to its final IR, and check that the result links.

bishengir-compile (PyPI ``ascendnpu-ir``) plans UB, inserts synchronisation and turns vector operations into library
calls; it ends by calling the closed ``hivmc``, which CANN ships and makes the binary. Without ``hivmc`` its last
intermediate file, the *final IR*, is what we have, and what the emulator runs. No binary made so has run on an NPU yet.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from monotile.compat.errors import LoweringError, ToolchainMissing

DISTRIBUTION = "ascendnpu-ir"
FINAL_IR = "module.hivm.opt.mlir"
_TIMEOUT_S = 300
# bishengir-compile's own lines around what hivmc said
_NOT_THE_REASON = ("External hivmc", "Cannot find hivmc", "Executing:", "Failed to run", "Failed to detect")

# Auto-multi-buffer overlaps a turn's loads with the work of the turn before; it needs room for a second set of tiles.
MULTI_BUFFER = "--enable-auto-multi-buffer=true"
COMMON_FLAGS = ("-enable-hivm-compile=true",)


@dataclass(frozen=True)
class Compiled:
    """What the vendor's pipeline made of a module."""

    final_ir: str        # custom assembly form
    generic_ir: str      # the same in MLIR's generic form, which the emulator parses
    calls: tuple[str, ...]
    multi_buffered: bool
    linked: bool            # every call was found in the vector library
    binary: bytes | None    # with hivmc on PATH
    refused: str | None     # what hivmc said, where it made no binary


def _root() -> Path:
    found = importlib.util.find_spec("ascendnpuir")
    if found is None or not found.submodule_search_locations:
        raise ToolchainMissing("bishengir-compile was looked for in the Python package ascendnpu-ir, which is not "
                               "installed: pip install 'monotile[emulator]'")
    return Path(next(iter(found.submodule_search_locations)))


def version() -> str:
    _root()
    return importlib.metadata.version(DISTRIBUTION)


def _program(name: str, generation: str) -> Path:
    """``generation``: ``c220`` (910B, 910_93xx) or ``c310`` (950), which has its own build of the tools."""
    return _root() / "bin" / (name + ("-a5" if generation == "c310" else ""))


def hivmc_name(generation: str) -> str:
    """The program that bishengir-compile of this generation calls for the binary."""
    return "hivmc-a5" if generation == "c310" else "hivmc"


def hivmc_version(generation: str) -> str | None:
    """What hivmc calls itself (``hivmc 1.2.3 (commit date)``), or None where it is not on PATH."""
    path = shutil.which(hivmc_name(generation))
    return None if path is None else _version_of(path)


@functools.cache
def _version_of(path: str) -> str:
    """Its first line, or its size where it does not tell: caches are keyed by this."""
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    name = Path(path).name
    found = next((line.strip() for line in told.splitlines() if re.match(r"\s*hivmc\S* \d", line)), None)
    return found or f"{name} of {Path(path).stat().st_size} bytes"


@functools.cache
def library_entries(generation: str) -> frozenset[str] | None:
    """Entries of the vector library in the wheel's bitcode; None where LLVM cannot read it.

    The 950's (c310) is bitcode that upstream LLVM refuses ("Invalid value", LLVM 15 producer with Huawei's own
    records), so for that generation nothing is claimed beyond acceptance by the compiler.
    """
    import llvmlite.binding as llvm

    prefix = "_mlir_ciface_"
    bitcode = (_root() / "lib" / f"meta_op.aiv.{generation}.bc").read_bytes()
    try:
        functions = llvm.parse_bitcode(bitcode).functions
    except RuntimeError:
        return None
    return frozenset(f.name.removeprefix(prefix) for f in functions)


def compile_to_final(text: str, chip: str, generation: str, op: str) -> Compiled:
    """Run the vendor's pipeline: multi-buffered where both sets of tiles fit in UB, single-buffered otherwise.

    Raises LoweringError (stage ``accept`` or ``link``) with the compiler's first error.
    """
    try:
        return _attempt(text, chip, generation, op, multi_buffer=True)
    except LoweringError as error:
        if "overflow" not in str(error):
            raise
    return _attempt(text, chip, generation, op, multi_buffer=False)


def _attempt(text: str, chip: str, generation: str, op: str, multi_buffer: bool) -> Compiled:
    with tempfile.TemporaryDirectory(prefix="monotile-npuir-") as scratch:
        folder = Path(scratch)
        source, output = folder / "kernel.mlir", folder / "kernel.o"
        source.write_text(text)
        done = _run(command(source, output, chip, generation, multi_buffer), op, chip)
        final = folder / FINAL_IR
        if not final.exists():
            raise LoweringError(op=op, target=chip, stage="accept", reason=_first_error(done.stderr))
        final_ir = final.read_text()
        calls = _check_link(text, final_ir, generation, chip, op)
        generic = _run([str(_program("bishengir-opt", generation)), "--mlir-print-op-generic", str(final)], op, chip)
        if generic.returncode:
            raise LoweringError(op=op, target=chip, stage="accept", reason=_first_error(generic.stderr))
        binary = output.read_bytes() if done.returncode == 0 and output.exists() else None
        refused = None
        if not binary and shutil.which(hivmc_name(generation)):
            refused = _first_error(done.stderr)
        return Compiled(final_ir, generic.stdout, calls, multi_buffer, library_entries(generation) is not None,
                        binary or None, refused)


def command(source: Path, output: Path, chip: str, generation: str, multi_buffer: bool) -> list[str]:
    """The command line that compiles a module; the final IR is left in the source's folder."""
    return [str(_program("bishengir-compile", generation)), str(source), f"--target={chip}", *COMMON_FLAGS,
            *([MULTI_BUFFER] if multi_buffer else []), f"--save-temps={source.parent}", "-o", str(output)]


def _run(command: list[str], op: str, chip: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as expired:
        raise LoweringError(op=op, target=chip, stage="accept",
                            reason=f"{Path(command[0]).name} did not finish within {_TIMEOUT_S} s") from expired
    except OSError as error:
        raise ToolchainMissing(f"{command[0]} cannot be run: {error}") from error


def _first_error(stderr: str) -> str:
    for line in stderr.splitlines():
        if "error" in line.lower() and not any(words in line for words in _NOT_THE_REASON):
            return re.sub(r'loc\("[^"]*/([^"/]+)":', r'loc("\1":', line.strip())[:400]
    return (stderr.strip().splitlines() or ["the compiler wrote no final IR and no message"])[-1][:400]


def _check_link(text: str, final_ir: str, generation: str, chip: str, op: str) -> tuple[str, ...]:
    """Every call has a library body, nothing is left un-lowered, and no element loop was put in by the compiler."""
    calls = tuple(re.findall(r"func\.func private @(\w+)\(", final_ir))
    entries = library_entries(generation)
    missing = sorted(c for c in calls if entries is not None and c not in entries)
    if missing:
        raise LoweringError(op=op, target=chip, stage="link",
                            reason=f"the vector library has no {', '.join(missing)}")
    left = sorted(set(re.findall(r"hivm\.hir\.v\w+", final_ir)))
    if left:
        raise LoweringError(op=op, target=chip, stage="link", reason=f"left un-lowered: {', '.join(left)}")
    ours, theirs = (_element_accesses(t) for t in (text, final_ir))
    if theirs > ours:
        raise LoweringError(op=op, target=chip, stage="link",
                            reason=f"the compiler added {theirs - ours} scalar element accesses: a vector operation "
                                   "fell back to an element loop")
    return calls


def _element_accesses(text: str) -> int:
    """Scalar loads and stores of UB or global memory (multi-buffering keeps counters elsewhere)."""
    return len(re.findall(r"memref\.(?:load|store) .*#hivm\.address_space<(?:ub|gm)>", text))
