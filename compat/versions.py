"""What is installed: packages, compilers, devices' software. Asked for when needed, never at import."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

from monotile.compat.errors import ToolchainMissing

TILELANG_MINIMUM = (0, 1, 15)
FORK = "tilelang-ascend"   # owns the module name tilelang, with an older front end


def package(distribution: str) -> str | None:
    """An installed distribution's version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch() -> str | None:
    return package("torch")


def torch_npu() -> str | None:
    return package("torch-npu")


def ascendnpu_ir() -> str | None:
    return package("ascendnpu-ir")


def tilelang() -> str | None:
    return package("tilelang")


def check_tilelang() -> None:
    """Raise ToolchainMissing unless the module ``tilelang`` is upstream's, and new enough."""
    fork, upstream = package(FORK), tilelang()
    if fork is not None:
        raise ToolchainMissing(
            f"the module tilelang here is {FORK} {fork}, a fork whose older front end cannot trace these kernels; "
            f"monotile compiles for Ascend from upstream TileLang: pip uninstall {FORK} tilelang, then "
            f"pip install 'tilelang>={_dotted(TILELANG_MINIMUM)}'")
    if upstream is None:
        raise ToolchainMissing("TileLang is not installed: pip install "
                               f"'tilelang>={_dotted(TILELANG_MINIMUM)}'")
    if _numbers(upstream) < TILELANG_MINIMUM:
        raise ToolchainMissing(f"tilelang {upstream} is too old: pip install "
                               f"'tilelang>={_dotted(TILELANG_MINIMUM)}'")


@functools.cache
def nvcc() -> str | None:
    """nvcc's release on PATH (``13.0``), or None."""
    program = shutil.which("nvcc")
    if program is None:
        return None
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"release (\d+\.\d+)", told.stdout)
    return found.group(1) if found else None


def cann() -> str | None:
    """The version of the CANN toolkit that ASCEND_HOME_PATH names (``unknown`` if it does not say), or None."""
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    if not home or not Path(home).is_dir():
        return None
    for info in [Path(home, "version.info"), Path(home, "compiler", "version.info"),
                 *sorted(Path(home).glob("*-linux/ascend_toolkit_install.info"))]:
        if info.is_file():
            found = re.search(r"^[Vv]ersion\s*=\s*(\S+)", info.read_text(errors="replace"), re.MULTILINE)
            if found:
                return found.group(1)
    return "unknown"


def hivmc() -> str | None:
    """CANN's closed last stage of AscendNPU-IR's compiler: its path, or None."""
    return shutil.which("hivmc")


def cxx() -> str | None:
    """The host's C++ compiler, g++ before clang++: its path, or None."""
    return shutil.which("g++") or shutil.which("clang++")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
