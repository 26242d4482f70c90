"""CANN's compiler for AscendC, where it is installed: a device binary of a text, as TileLang makes it.

TileLang (tilelang.contrib.bisheng) says which options: bisheng compiles the device's code alone to a relocatable object
and CANN's ld.lld links that, which is what its runtime loads. No binary made so has run on an NPU yet.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from monotile.compat.errors import LoweringError, ToolchainMissing
from monotile.targets.spec import Target

# The architecture in bisheng's flags. A 950 (dav-c310) is 3510; what is built for 2201, the 910B's, faults there.
_ARCHITECTURES = {"dav-c310": "dav-3510"}
_TIMEOUT_S = 300


def program() -> str | None:
    """bisheng's path: on PATH, or in the CANN toolkit that ASCEND_HOME_PATH names."""
    return _find("bisheng")


def linker() -> str | None:
    """The path of CANN's ld.lld, which knows the device's format: beside bisheng, else as bisheng is found."""
    compiler = program()
    beside = Path(compiler).with_name("ld.lld") if compiler is not None else None
    return str(beside) if beside is not None and beside.is_file() else _find("ld.lld")


def _find(name: str) -> str | None:
    found = shutil.which(name)
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    if found is None and home:
        candidate = Path(home, "bin", name)
        found = str(candidate) if candidate.is_file() else None
    return found


def version() -> str:
    """The first line of ``bisheng --version``, for the cache's key; ``none`` where it is not installed."""
    compiler = program()
    return "none" if compiler is None else _version_of(compiler)


@functools.cache
def _version_of(path: str) -> str:
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    return told.strip().splitlines()[0] if told.strip() else f"of {Path(path).stat().st_size} bytes"


def commands(compiler: str, link: str, source: Path, output: Path, target: Target,
             includes: Sequence[Path]) -> tuple[list[str], list[str]]:
    """The command lines that compile and link a kernel for a target."""
    from tilelang.contrib import bisheng as theirs

    relocatable = output.with_suffix(".rel.o")
    options = theirs.get_bisheng_compile_options(_ARCHITECTURES[target.arch], [f"-I{folder}" for folder in includes])
    return ([compiler, "-x", "asc", *options, "--cce-aicore-only", str(source), "-o", str(relocatable)],
            [link, *theirs.get_aibin_linker_options(), str(relocatable), "-o", str(output)])


def build(source: Path, output: Path, target: Target, op: str) -> bool:
    """Compile where bisheng is installed; False where it is not.

    Raises LoweringError with its first error, and ToolchainMissing for a bisheng without its linker.
    """
    compiler, link = program(), linker()
    if compiler is None:
        return False
    if link is None:
        raise ToolchainMissing(f"{compiler} is installed without CANN's ld.lld, which links its binaries: source "
                               "CANN's set_env.sh")
    from tilelang.env import TILELANG_TEMPLATE_PATH

    try:
        for line, stage in zip(commands(compiler, link, source, output, target, [Path(TILELANG_TEMPLATE_PATH)]),
                               ("accept", "link")):
            _run(line, stage, target, op)
    finally:
        output.with_suffix(".rel.o").unlink(missing_ok=True)
    if not output.is_file():
        raise LoweringError(op, target.name, "link", f"{Path(link).name} wrote no binary and no error")
    return True


def _run(line: Sequence[str], stage: str, target: Target, op: str) -> None:
    name = Path(line[0]).name
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as expired:
        raise LoweringError(op, target.name, stage, f"{name} did not finish within {_TIMEOUT_S} s") from expired
    except OSError as error:
        raise ToolchainMissing(f"{line[0]} cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr + done.stdout
        first = next((text for text in said.splitlines() if "error" in text), said.strip()[:400])
        raise LoweringError(op, target.name, stage, f"{name}: {first.strip()[:400]}")
