"""NVIDIA's compiler: find it, and make a cubin."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from monotile.compat.errors import LoweringError, ToolchainMissing
from monotile.targets.spec import Target

_MINIMUM = (12, 3)   # -std=c++20 with the headers of TileLang's templates
_TIMEOUT_S = 600
# -lineinfo costs nothing at run time and lets profilers show the source.
FLAGS = ("-cubin", "-O3", "-std=c++20", "-lineinfo")


@dataclass(frozen=True)
class Usage:
    """What ptxas reports of a kernel."""

    registers: int
    spilled_bytes: int
    static_shared_bytes: int


def find() -> str:
    """nvcc on PATH, under CUDA_HOME, or in /usr/local/cuda. Raises ToolchainMissing."""
    looked = ["PATH"]
    found = shutil.which("nvcc")
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if found is None and home:
            looked.append(f"{home}/bin")
            found = shutil.which("nvcc", path=f"{home}/bin")
    if found is None:
        raise ToolchainMissing(f"compiling for CUDA needs nvcc, which was looked for in {', '.join(looked)}: install "
                               f"the CUDA toolkit, {_MINIMUM[0]}.{_MINIMUM[1]} or newer, and add its bin folder to "
                               "PATH")
    return found


def version() -> str:
    """The release, such as ``13.0.88``. Raises ToolchainMissing for one that is too old."""
    return _version(find())


@functools.cache
def _version(program: str) -> str:
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainMissing(f"{program} --version fails ({error}): reinstall the CUDA toolkit") from error
    found = re.search(r"V(\d+)\.(\d+)\.(\d+)", told)
    if found is None:
        raise ToolchainMissing(f"{program} --version names no release: reinstall the CUDA toolkit")
    if (int(found[1]), int(found[2])) < _MINIMUM:
        raise ToolchainMissing(f"{program} is of CUDA {found[1]}.{found[2]}, which is too old: install the CUDA "
                               f"toolkit {_MINIMUM[0]}.{_MINIMUM[1]} or newer")
    return ".".join(found.groups())


def command(target: Target) -> tuple[str, ...]:
    """Flags, without the paths of this machine."""
    return (f"-arch={target.arch}", *FLAGS)


def compile_cubin(source: Path, output: Path, target: Target, op: str) -> Usage:
    """Compile a file. Raises LoweringError with nvcc's first error, and ToolchainMissing."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    program = find()
    _version(program)
    arguments = [program, *command(target), f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}",
                 "-Xptxas", "-v", "-o", str(output), str(source)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except OSError as error:
        raise ToolchainMissing(f"{program} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise LoweringError(op, target.name, "compile", f"nvcc took more than {_TIMEOUT_S} s") from error
    printed = done.stdout + done.stderr
    if done.returncode != 0 or not output.is_file():
        raise LoweringError(op, target.name, "compile", f"nvcc: {_first_error(printed)}")
    return _usage(printed)


def _usage(printed: str) -> Usage:
    def largest(pattern: str) -> int:
        return max(map(int, re.findall(pattern, printed)), default=0)

    return Usage(largest(r"Used (\d+) registers"), largest(r"(\d+) bytes spill stores"), largest(r"(\d+) bytes smem"))


def _first_error(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)),
                lines[-1] if lines else "it failed and printed nothing")[:400]
