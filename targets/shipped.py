"""Kernels compiled ahead of time: a folder that ``monotile compile`` writes, and that a launch takes them from.

``MONOTILE_KERNELS`` names the folder. What it holds for a call is used without TileLang or a compiler; what it does
not hold is built as usual, with a warning that says what was looked for. An entry whose source has changed since, or
whose files are not what was compiled, is refused in words and never used silently.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monotile.compat.errors import MonotileError
from monotile.targets import provenance
from monotile.targets.backend import ScalarParam, Source, TensorParam, backend
from monotile.targets.build import Artifact
from monotile.targets.cache import MANIFEST as FILES
from monotile.targets.cache import intact
from monotile.targets.kernel import Kernel
from monotile.targets.select import Selection
from monotile.targets.tiling import Tiling

VARIABLE = "MONOTILE_KERNELS"
MANIFEST, FORMAT = "kernels.json", 1


class ShippedKernelError(MonotileError, RuntimeError):
    """A folder of kernels that cannot be used, and why."""


class KernelNotShipped(UserWarning):
    """The folder does not hold a kernel that a call needs, which is built instead."""


def source_digest(kernel: Kernel) -> str:
    """Of the file that the kernel is written in, and of what that imports."""
    return provenance.digest([kernel.builder.__module__])


def _identity(op: str, params: Mapping[str, Any], tile: Mapping[str, Any], target: str, backend_name: str) -> str:
    return json.dumps([op, dict(params), dict(tile), target, backend_name], sort_keys=True)


def entry(kernel: Kernel, artifact: Artifact, folder: str) -> dict[str, Any]:
    """What the manifest says of a compiled kernel whose files lie in ``folder``."""
    source = artifact.source
    return {"op": artifact.op, "params": dict(artifact.params), "tile": dict(artifact.tile),
            "target": artifact.target.name, "backend": artifact.backend, "folder": folder,
            "accepted": backend(artifact.backend).accepted(_folder(artifact)), "source": source_digest(kernel),
            "digest": _digest_of(_folder(artifact)), "name": source.name, "suffix": source.suffix,
            "grid": list(source.grid), "tensors": [asdict(t) for t in source.tensors],
            "scalars": [asdict(s) for s in source.scalars]}


def _digest_of(files: Path) -> str:
    """Of a compiled kernel's own manifest, which has the digest of each of its files."""
    return hashlib.sha256((files / FILES).read_bytes()).hexdigest()[:32]


def _folder(artifact: Artifact) -> Path:
    assert artifact.directory is not None
    return artifact.directory


def add_to_manifest(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Name these kernels in the folder's manifest, beside what it names already; the last file to be written.

    Raises ShippedKernelError for a manifest of another format.
    """
    known = dict(_read(folder)) if (folder / MANIFEST).exists() else {}
    known.update({_identity_of(each): dict(each) for each in entries})
    text = json.dumps({"format": FORMAT, "kernels": [known[name] for name in sorted(known)]}, indent=1, sort_keys=True)
    new = folder / f"{MANIFEST}.new"
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(folder / MANIFEST)


def _identity_of(entry: Mapping[str, Any]) -> str:
    return _identity(entry["op"], entry["params"], entry["tile"], entry["target"], entry["backend"])


def find(kernel: Kernel, params: Mapping[str, Any], tile: Tiling, selection: Selection) -> Artifact | None:
    """The kernel as the folder holds it, or None where it does not or no folder is named. Raises ShippedKernelError."""
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    known = _manifest(folder)
    told = known.get(_identity(kernel.op, params, tile, selection.target.name, selection.backend))
    if told is None:
        warnings.warn(_why_not(folder, known.values(), kernel.op, params, tile, selection), KernelNotShipped,
                      stacklevel=4)
        return None
    if told["source"] != source_digest(kernel):
        raise ShippedKernelError(f"{kernel.op} in {folder} was compiled from another version of its source: run "
                                 f"monotile compile again, or unset {VARIABLE}")
    files = folder / told["folder"]
    if not intact(files) or _digest_of(files) != told["digest"]:
        raise ShippedKernelError(f"{files} is not what was compiled (files are missing or changed): run monotile "
                                 f"compile again, or unset {VARIABLE}")
    text = (files / f"source{told['suffix']}").read_text(encoding="utf-8")
    tensors = tuple(TensorParam(t["name"], t["dtype"], tuple(t["shape"]), tuple(t["strides"]))
                    for t in told["tensors"])
    source = Source(text, told["suffix"], told["name"], tensors, tuple(ScalarParam(**s) for s in told["scalars"]),
                    grid=tuple(told["grid"]))
    return Artifact(kernel.op, selection.target, selection.backend, tile, dict(params), source, 0.0, files)


def _why_not(folder: Path, known: Iterable[Mapping[str, Any]], op: str, params: Mapping[str, Any],
             tile: Mapping[str, Any], selection: Selection) -> str:
    """What is wanted, and how what the folder holds of this kernel is different."""
    wanted = f"{op} for {selection.target.name} ({selection.backend}) with {_written(params)}, tiled {_written(tile)}"
    ours = [each for each in known if each["op"] == op]
    here = [each for each in ours if (each["target"], each["backend"]) == (selection.target.name, selection.backend)]
    same = [each for each in here if each["params"] == dict(params)]
    if same:
        held = "it is there with the tiling " + "; ".join(_written(each["tile"]) for each in same)
    elif here:
        held = "it is there with " + "; ".join(sorted({_written(each["params"]) for each in here})[:4])
    elif ours:
        held = "it is there for " + ", ".join(sorted({f"{each['target']} ({each['backend']})" for each in ours}))
    else:
        held = "nothing of that kernel is there"
    return f"{folder} has no {wanted}, which is built now: {held}"


def _written(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(values.items())) or "no parameters"


@functools.lru_cache(maxsize=8)
def _manifest(folder: Path) -> Mapping[str, dict[str, Any]]:
    return _read(folder)


def _read(folder: Path) -> Mapping[str, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShippedKernelError(f"{path} cannot be read ({error}): name a folder that monotile compile wrote, in "
                                 f"{VARIABLE} or as --out") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        found = told.get("format") if isinstance(told, dict) else None
        raise ShippedKernelError(f"{path} has format {found}, this version reads {FORMAT}")
    return {_identity_of(each): each for each in told["kernels"]}
