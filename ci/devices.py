"""Is a leg's device here? Asked twice: of the machine, before anything is installed; of torch, before anything runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from legs import CiError, Leg

DEV = Path("/dev")
NAME = {
    "cuda": "import torch; print(torch.cuda.get_device_name(0))",
    "npu": "import torch, torch_npu; print(torch_npu.npu.get_device_name(0))",
}


def check_machine(leg: Leg) -> None:
    """Raises CiError where the machine has no device of the leg's kind, or only others."""
    if leg.device.probe == "cuda":
        _need(leg, _gpus(leg))
    elif leg.device.probe == "npu" and not any(DEV.glob("davinci[0-9]*")):
        raise CiError(f"leg {leg.name} needs an {leg.device.about}, and this machine has no NPU: there is no "
                      f"{DEV}/davinci0{_instead(leg)}")


def check_torch(leg: Leg, python: str, env: Mapping[str, str]) -> str:
    """The name that the device gives itself ("" without one). Raises CiError where torch sees none, or another."""
    if leg.device.probe == "none":
        return ""
    asked = subprocess.run([python, "-c", NAME[leg.device.probe]], capture_output=True, text=True, check=False,
                           env={**os.environ, **env})
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CiError(f"leg {leg.name} needs an {leg.device.about}, and torch does not reach it: {last}")
    name = (asked.stdout.strip().splitlines() or [""])[-1]
    _need(leg, [name])
    return name


def _gpus(leg: Leg) -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise CiError(f"leg {leg.name} needs an {leg.device.about}, and this machine has no nvidia-smi{_instead(leg)}")
    listed = subprocess.run([program, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                            check=False)
    if listed.returncode != 0:
        raise CiError(f"leg {leg.name} needs an {leg.device.about}, and nvidia-smi fails: "
                      f"{(listed.stderr or listed.stdout).strip()}")
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()]


def _need(leg: Leg, names: list[str]) -> None:
    if not any(re.match(leg.device.chip, name) for name in names):
        raise CiError(f"leg {leg.name} needs an {leg.device.about}, and this machine has "
                      f"{', '.join(sorted(set(names))) or 'no device'}{_instead(leg)}")


def _instead(leg: Leg) -> str:
    return "; without it, leg cpu-emulator runs anywhere"
