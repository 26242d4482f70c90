"""ci/matrix.toml as objects. Needs the standard library only: it is read before anything is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:                      # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]  # pip has a reader, and a leg needs pip

ROOT = Path(__file__).resolve().parents[1]
MATRIX = ROOT / "ci" / "matrix.toml"
PROBES = ("none", "cuda", "npu")
WHEN = ("change", "nightly")
DEFAULT_MARKER = "not slow and not fuzz"         # as in pyproject.toml


class CiError(Exception):
    """What the user is told in one sentence; nothing was run."""


@dataclass(frozen=True)
class Device:
    name: str
    about: str
    runner: tuple[str, ...]
    probe: str
    extras: str
    chip: str = ""
    brings_torch: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    hosted_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosted(self) -> bool:
        """A machine of GitHub's, not one of ours?"""
        return "self-hosted" not in self.runner


@dataclass(frozen=True)
class Leg:
    name: str
    about: str
    device: Device
    when: str
    python: tuple[str, ...]
    checks: Mapping[str, tuple[str, ...]]        # name -> arguments of Python, in order
    minutes: int
    marker: str
    paths: tuple[str, ...]
    env: Mapping[str, str]                       # the device's and the leg's


@dataclass(frozen=True)
class Matrix:
    devices: Mapping[str, Device]
    legs: Mapping[str, Leg]
    machine_packages: tuple[str, ...]

    def leg(self, name: str) -> Leg:
        if name not in self.legs:
            raise CiError(f"no leg is called {name!r}; the legs are {', '.join(self.legs)}")
        return self.legs[name]


def read(path: Path = MATRIX) -> Matrix:
    """Raises CiError where a leg names a device or a check that does not exist, or a value is none of the known."""
    with path.open("rb") as file:
        raw = tomllib.load(file)
    devices = {name: _device(name, row) for name, row in raw["devices"].items()}
    legs = {name: _leg(name, row, devices, raw["checks"]) for name, row in raw["legs"].items()}
    return Matrix(devices, legs, tuple(raw.get("machine_packages", ())))


def _device(name: str, row: dict[str, Any]) -> Device:
    device = _made(Device, name, row | {"runner": tuple(row["runner"])})
    _known(device.probe, PROBES, f"devices.{name}: probe")
    if (device.probe == "none") != (device.chip == ""):
        raise CiError(f"devices.{name}: a device that is probed has a chip, and no other has")
    return device


def _leg(name: str, row: dict[str, Any], devices: Mapping[str, Device], checks: Mapping[str, Any]) -> Leg:
    device = devices[_known(row["device"], tuple(devices), f"legs.{name}: device")]
    _known(row["when"], WHEN, f"legs.{name}: when")
    marker, paths = row.get("marker", DEFAULT_MARKER), tuple(row.get("paths", ["tests"]))
    commands = {}
    for check in row["checks"]:
        words = checks[_known(check, tuple(checks), f"legs.{name}: check")]
        commands[check] = tuple(word for written in words
                                for word in (paths if written == "{paths}" else (written.replace("{marker}", marker),)))
    return _made(Leg, name, row | {
        "device": device, "python": tuple(row["python"]), "checks": commands, "marker": marker, "paths": paths,
        "env": {**device.env, **row.get("env", {})}})


def _made(kind: type, name: str, row: dict[str, Any]) -> Any:
    try:
        return kind(name=name, **row)
    except TypeError as error:
        raise CiError(f"{MATRIX.name}, {name}: {error}") from None


def _known(value: str, allowed: tuple[str, ...], where: str) -> str:
    if value not in allowed:
        raise CiError(f"{where} must be one of {', '.join(allowed)}, got {value!r}")
    return value
