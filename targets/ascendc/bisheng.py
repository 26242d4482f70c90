"""CANN's compiler for AscendC, where it is installed: the command for a chip, and whether the text is accepted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from monotile.compat.errors import LoweringError
from monotile.targets.spec import Target

# The architecture in bisheng's flags. A 950 (dav-c310) is 3510; what is built for 2201, the 910B's, faults there.
_ARCHITECTURES = {"dav-c310": "dav-3510"}
_TIMEOUT_S = 300


def program() -> str | None:
    """bisheng's path: on PATH, or in the CANN toolkit that ASCEND_HOME_PATH names."""
    found = shutil.which("bisheng")
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    if found is None and home:
        candidate = Path(home, "bin", "bisheng")
        found = str(candidate) if candidate.is_file() else None
    return found


def command(compiler: str, source: Path, output: Path, target: Target, includes: list[Path]) -> list[str]:
    """The command line that compiles a kernel for a target."""
    architecture = _ARCHITECTURES[target.arch]
    return [compiler, "-x", "asc", "-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false",
            f"--npu-arch={architecture}", "-shared", *(f"-I{folder}" for folder in includes), str(source), "-o",
            str(output)]


def accept(source: Path, output: Path, target: Target, op: str) -> bool:
    """Compile where bisheng is installed; False where it is not. Raises LoweringError with its first error."""
    compiler = program()
    if compiler is None:
        return False
    import tilelang

    templates = Path(tilelang.__file__).parent / "src"
    done = subprocess.run(command(compiler, source, output, target, [templates]), capture_output=True, text=True,
                          timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:400])
        raise LoweringError(op, target.name, "accept", f"bisheng: {first.strip()[:400]}")
    return True
