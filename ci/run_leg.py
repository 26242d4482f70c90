"""Run one leg of ci/matrix.toml, the same way on a laptop and on a runner.

    python ci/run_leg.py cpu-emulator                    make or take .venv, run the checks, say how long each took
    python ci/run_leg.py cpu-emulator --python 3.12      with another of the leg's Pythons
    python ci/run_leg.py ascend-910b --no-venv           with the Python that runs this, as it is installed
    python ci/run_leg.py cpu-emulator-fuzz --set FUZZ_CASES=200
    python ci/run_leg.py --list

Exit status: 0 all passed, 1 a check failed, 2 nothing was run (no such leg, no such device, no such Python).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import devices
from legs import MATRIX, ROOT, CiError, Leg, Matrix, read

CONSTRAINTS = ROOT / "ci" / "constraints.txt"
OURS = re.compile(r"KERNEL_|MONOTILE_|FUZZ_")
KEPT = ("MONOTILE_CACHE_DIR",)   # where compiled kernels are kept changes no result


@dataclass(frozen=True)
class Outcome:
    check: str
    status: int
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        matrix = read(options.matrix)
        if options.list or options.leg is None:
            for leg in matrix.legs.values():
                print(f"{leg.name:26} {leg.when:8} Python {', '.join(leg.python):24} {leg.about}")
            return 0 if options.list else 2
        leg = matrix.leg(options.leg)
        devices.check_machine(leg)
        chosen = dict(_setting(text) for text in options.set)
        if options.no_venv:
            python = sys.executable
        else:
            python = str(prepare(leg, matrix, find_python(leg, options.python), options.venv or venv_of(leg)))
        if options.prepare:
            return 0
        env = {**leg.env, **chosen}
        name = devices.check_torch(leg, python, env)
    except CiError as error:
        print(f"run_leg: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"run_leg: the environment could not be made: {' '.join(map(str, error.cmd))} ended with "
              f"{error.returncode}", file=sys.stderr)
        return 2
    print(f"leg {leg.name}: {leg.about}; {python}; " + (f"{name}; " if name else "")
          + " ".join(f"{key}={value}" for key, value in env.items()), flush=True)
    outcomes = [run(check, [python, *words], env) for check, words in leg.checks.items()]
    _summarise(leg, outcomes)
    return int(any(outcome.status for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one leg of ci/matrix.toml.")
    parser.add_argument("leg", nargs="?", help="its name; --list shows them")
    parser.add_argument("--list", action="store_true", help="the legs, and nothing else")
    parser.add_argument("--python", metavar="VERSION", help="one of the leg's Python versions, such as 3.12")
    parser.add_argument("--venv", type=Path, metavar="FOLDER", help="where the environment is made")
    parser.add_argument("--no-venv", action="store_true", help="use the Python that runs this, as it is installed")
    parser.add_argument("--prepare", action="store_true", help="make the environment, run nothing")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the checks")
    parser.add_argument("--matrix", type=Path, default=MATRIX, help=argparse.SUPPRESS)
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CiError(f"--set takes NAME=VALUE, got {text!r}")
    return name, value


# ---------------------------------------------------------------------- the environment
def find_python(leg: Leg, wanted: str | None) -> str:
    """A Python of the version asked for; else the one that runs this, where the leg takes it; else the leg's first."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if wanted is not None and wanted not in leg.python:
        raise CiError(f"leg {leg.name} runs on Python {', '.join(leg.python)}, not {wanted}")
    versions = [wanted] if wanted is not None else leg.python
    if running in versions:
        return sys.executable
    for version in versions:
        found = shutil.which(f"python{version}")
        if found is not None:
            return found
    raise CiError(f"leg {leg.name} needs Python {' or '.join(versions)}, and there is no "
                  f"{' or '.join(f'python{version}' for version in versions)} on PATH")


def venv_of(leg: Leg) -> Path:
    return ROOT / (".venv" if leg.device.probe == "none" else f".venv-{leg.device.name}")


def prepare(leg: Leg, matrix: Matrix, python: str, venv: Path) -> Path:
    """The interpreter of an environment for the leg's device; made anew where what it is made from has changed."""
    pins = constraints(leg, matrix)
    version = subprocess.run([python, "-VV"], capture_output=True, text=True, check=True).stdout
    made_from = hashlib.sha256("\0".join(
        [version, pins, leg.device.extras, str(leg.device.brings_torch),
         (ROOT / "pyproject.toml").read_text(encoding="utf-8")]).encode()).hexdigest()
    ready, interpreter = venv / ".ready", (venv / "bin" / "python").absolute()
    if ready.exists() and ready.read_text(encoding="utf-8") == made_from and interpreter.exists():
        ready.touch()   # for make, which compares times
        return interpreter
    own = ["--system-site-packages"] if leg.device.brings_torch else []
    subprocess.run([python, "-m", "venv", "--clear", *own, str(venv)], check=True)
    kept = venv / "constraints.txt"
    kept.write_text(pins, encoding="utf-8")
    install = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(kept)]
    if not leg.device.brings_torch:
        subprocess.run([*install, "torch"], check=True, cwd=ROOT)
    subprocess.run([*install, "-e", f".[{leg.device.extras}]"], check=True, cwd=ROOT)
    ready.write_text(made_from, encoding="utf-8")
    return interpreter


def constraints(leg: Leg, matrix: Matrix) -> str:
    """The tested versions, without those of what the machine brings."""
    text = CONSTRAINTS.read_text(encoding="utf-8")
    if not leg.device.brings_torch:
        return text
    brought = {_plain(name) for name in matrix.machine_packages}
    return "\n".join(line for line in text.splitlines() if _plain(line.partition("==")[0]) not in brought) + "\n"


def _plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


# ---------------------------------------------------------------------- the checks
def run(check: str, command: Sequence[str], env: Mapping[str, str]) -> Outcome:
    """One check, under the leg's variables and none that happen to be set here."""
    inherited = {key: value for key, value in os.environ.items() if not OURS.match(key) or key in KEPT}
    print(f"\n== {check}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env={**inherited, **env}, check=False).returncode
    return Outcome(check, status, time.monotonic() - started)


def _summarise(leg: Leg, outcomes: Sequence[Outcome]) -> None:
    print(f"\nleg {leg.name}:")
    for outcome in outcomes:
        print(f"  {outcome.check:16} {outcome.seconds:8.1f} s  {_verdict(outcome)}")
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if page:
        with open(page, "a", encoding="utf-8") as file:
            file.write(f"| {leg.name} | seconds | |\n|---|---|---|\n")
            file.writelines(f"| {o.check} | {o.seconds:.1f} | {_verdict(o)} |\n" for o in outcomes)


def _verdict(outcome: Outcome) -> str:
    return "passed" if outcome.status == 0 else f"failed (exit status {outcome.status})"


if __name__ == "__main__":
    sys.exit(main())
