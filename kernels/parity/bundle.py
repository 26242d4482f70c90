"""Bundles: the results of all cases on one device, in one safetensors file.

The file's metadata has one entry, ``monotile``: JSON with where the results come from (device, target, backend,
executor, versions), each case's hash, the version of the tolerance table, and the date. Tensors are named
``case/output``.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from monotile.compat.errors import MonotileError
from monotile.parity.cases import Case
from monotile.parity.tolerances import VERSION

_KEY, FORMAT = "monotile", 1


class BundleError(MonotileError, ValueError):
    """A file that is no bundle, or bundles that cannot be compared."""


@dataclass(frozen=True)
class About:
    """Where a bundle comes from."""

    device: str
    target: str
    backend: str
    executor: str
    versions: Mapping[str, str]
    tolerances: int
    recorded: str
    format: int = FORMAT


@dataclass(frozen=True)
class Bundle:
    """Results by case and output, and each case's hash."""

    about: About
    hashes: Mapping[str, str]
    results: Mapping[str, Mapping[str, torch.Tensor]]


def record(cases: Sequence[Case], progress: Callable[[int, str], None] | None = None) -> Bundle:
    """Run the cases under the current selection. Raises what the ops raise."""
    from monotile.targets.select import default_device, resolve

    chosen, device = resolve(), default_device()
    results = {}
    for number, case in enumerate(cases):
        if progress is not None:
            progress(number, case.name)
        results[case.name] = case.run(device)
    about = About(_device_name(device, chosen.target.name), chosen.target.name, chosen.backend, chosen.executor,
                  _versions(), VERSION, datetime.date.today().isoformat())
    return Bundle(about, {case.name: case.hash for case in cases}, results)


def _device_name(device: torch.device, target: str) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "npu":
        from monotile.targets.select import npu_name

        return str(npu_name(device.index))
    return f"emulator of {target}"


def _versions() -> dict[str, str]:
    from monotile import environment

    found = {name: str(version) for name, version in environment.found().items() if version}
    return {"monotile": importlib.metadata.version("monotile") if _installed() else "source", **found}


def _installed() -> bool:
    try:
        importlib.metadata.version("monotile")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def save(bundle: Bundle, path: Path) -> None:
    """Write a bundle; the folder is made where it is missing."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"{case}/{output}": tensor for case, outputs in bundle.results.items()
               for output, tensor in outputs.items()}
    about = {**asdict(bundle.about), "cases": dict(bundle.hashes)}
    save_file(tensors, str(path), metadata={_KEY: json.dumps(about, sort_keys=True)})


def load(path: Path) -> Bundle:
    """Read a bundle: a file, or a folder that holds one. Raises BundleError."""
    from safetensors import SafetensorError, safe_open

    file = _file(path)
    results: dict[str, dict[str, torch.Tensor]] = {}
    try:
        with safe_open(str(file), framework="pt") as opened:
            metadata = (opened.metadata() or {}).get(_KEY)
            if metadata is None:
                raise BundleError(f"{file} is no parity bundle: its metadata has no entry {_KEY!r}")
            for name in opened.keys():  # noqa: SIM118  (no dict)
                case, _, output = name.rpartition("/")
                results.setdefault(case, {})[output] = opened.get_tensor(name)
    except SafetensorError as error:
        raise BundleError(f"{file} is no safetensors file: {error}") from error
    about, hashes = _told(metadata, file)
    if set(hashes) != set(results):
        raise BundleError(f"{file} names other cases than it holds")
    return Bundle(about, hashes, results)


def _told(metadata: str, file: Path) -> tuple[About, dict[str, str]]:
    """What a file's metadata says: where it comes from, and hashes by case."""
    try:
        told: Any = json.loads(metadata)
    except json.JSONDecodeError as error:
        raise BundleError(f"{file} is no parity bundle: its metadata is no JSON: {error}") from error
    found = told.get("format") if isinstance(told, dict) else None
    if found != FORMAT:
        raise BundleError(f"{file} has format {found}, this version reads {FORMAT}")
    known = {"cases"} | {each.name for each in dataclasses.fields(About)}
    need = {"cases"} | {each.name for each in dataclasses.fields(About)
                        if each.default is each.default_factory is dataclasses.MISSING}
    if not need <= set(told) <= known or not isinstance(told["cases"], dict):
        raise BundleError(f"{file} is no parity bundle: its metadata must have {', '.join(sorted(need))}, "
                          f"it has {', '.join(sorted(told))}")
    hashes = told.pop("cases")
    return About(**told), hashes


def _file(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise BundleError(f"{path} holds {len(found)} bundles; "
                              + ("name one" if found else "monotile parity record writes one"))
        return found[0]
    if not path.is_file():
        raise BundleError(f"there is no bundle {path}; monotile parity record writes one")
    return path
