"""ruff, and mypy over the package as it is imported: three source folders that are one package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TYPED = ROOT / "build" / "typed"


def main() -> int:
    shutil.rmtree(TYPED, ignore_errors=True)
    package = TYPED / "monotile"
    package.mkdir(parents=True)
    for source in (*(ROOT / "kernels").iterdir(), ROOT / "targets", ROOT / "compat"):
        (package / source.name).symlink_to(source)
    results = [subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, "MYPYPATH": str(TYPED)},
                              check=False).returncode
               for command in (("ruff", "check", "."), ("mypy", "-p", "monotile"))]
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
