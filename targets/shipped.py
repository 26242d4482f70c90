"""Kernels compiled ahead of time: a folder that ``monotile compile`` writes, and that a launch takes them from.

``MONOTILE_KERNELS`` names the folder. What it holds for a call is used without TileLang or a compiler; what it does not
hold is built as usual. An entry whose source file has changed since, or whose files are not what the manifest says, is
refused in words and never used silently.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monotile.compat.errors import MonotileError
from monotile.targets.backend import ScalarParam, Source, TensorParam, backend
from monotile.targets.build import Artifact
from monotile.targets.cache import intact
from monotile.targets.kernel import Kernel
from monotile.targets.select import Selection
from monotile.targets.tiling import Tiling

VARIABLE = "MONOTILE_KERNELS"
MANIFEST, FORMAT = "kernels.json", 1


class ShippedKernelError(MonotileError, RuntimeError):
    """A folder of kernels that cannot be used, and why."""


def source_digest(kernel: Kernel) -> str:
    """Of the file that the kernel is written in."""
    return hashlib.sha256(Path(inspect.getfile(kernel.builder)).read_bytes()).hexdigest()[:32]


def _identity(op: str, params: Mapping[str, Any], tile: Mapping[str, Any], target: str, backend_name: str) -> str:
    return json.dumps([op, dict(params), dict(tile), target, backend_name], sort_keys=True)


def entry(kernel: Kernel, artifact: Artifact, folder: str) -> dict[str, Any]:
    """What the manifest says of a compiled kernel whose files lie in ``folder``."""
    source = artifact.source
    return {"op": artifact.op, "params": dict(artifact.params), "tile": dict(artifact.tile),
            "target": artifact.target.name, "backend": artifact.backend, "folder": folder,
            "accepted": backend(artifact.backend).accepted(_folder(artifact)), "source": source_digest(kernel),
            "name": source.name, "suffix": source.suffix, "grid": list(source.grid),
            "tensors": [asdict(t) for t in source.tensors], "scalars": [asdict(s) for s in source.scalars]}


def _folder(artifact: Artifact) -> Path:
    assert artifact.directory is not None
    return artifact.directory


def write_manifest(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """The last file to be written: without it the folder is none of ours."""
    text = json.dumps({"format": FORMAT, "kernels": list(entries)}, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def find(kernel: Kernel, params: Mapping[str, Any], tile: Tiling, selection: Selection) -> Artifact | None:
    """The kernel as the folder holds it, or None where it does not or no folder is named. Raises ShippedKernelError."""
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    told = _manifest(folder).get(_identity(kernel.op, params, tile, selection.target.name, selection.backend))
    if told is None:
        return None
    if told["source"] != source_digest(kernel):
        raise ShippedKernelError(f"{kernel.op} in {folder} was compiled from another version of its source: run "
                                 f"monotile compile again, or unset {VARIABLE}")
    files = folder / told["folder"]
    if not intact(files):
        raise ShippedKernelError(f"{files} is not what was compiled (files are missing or changed): run monotile "
                                 f"compile again, or unset {VARIABLE}")
    text = (files / f"source{told['suffix']}").read_text(encoding="utf-8")
    tensors = tuple(TensorParam(t["name"], t["dtype"], tuple(t["shape"]), tuple(t["strides"]))
                    for t in told["tensors"])
    source = Source(text, told["suffix"], told["name"], tensors, tuple(ScalarParam(**s) for s in told["scalars"]),
                    grid=tuple(told["grid"]))
    return Artifact(kernel.op, selection.target, selection.backend, tile, dict(params), source, 0.0, files)


@functools.lru_cache(maxsize=8)
def _manifest(folder: Path) -> Mapping[str, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShippedKernelError(f"{VARIABLE} names {folder}, and {path} cannot be read ({error}): name a folder that "
                                 "monotile compile wrote") from error
    if told.get("format") != FORMAT:
        raise ShippedKernelError(f"{path} has format {told.get('format')}, this version reads {FORMAT}")
    return {_identity(each["op"], each["params"], each["tile"], each["target"], each["backend"]): each
            for each in told["kernels"]}
