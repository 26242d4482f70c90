"""From a kernel and a target to an artifact: trace, lower, compile, each step once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monotile.targets.backend import Source, backend
from monotile.targets.cache import cached, key_of
from monotile.targets.kernel import Kernel
from monotile.targets.spec import Target
from monotile.targets.tiling import Tiling

# TVM's builders and pass contexts are not safe to use from two threads at once.
_front_end = threading.RLock()


@dataclass(frozen=True)
class Artifact:
    """A lowered, and perhaps compiled, kernel."""

    op: str
    target: Target
    backend: str
    tile: Tiling
    params: Mapping[str, Any]
    source: Source
    lower_seconds: float
    directory: Path | None = None       # the compiled kernel's files
    compile_seconds: float | None = None   # None: it was in the cache

    @property
    def text(self) -> str:
        return self.source.text


def lower(kernel: Kernel, params: Mapping[str, Any], target: Target, backend_name: str | None = None,
          tile: Tiling | None = None) -> Artifact:
    """Lower to text; needs no compiler and no device.

    Raises TileTooLarge before anything else where the tile does not fit, and LoweringError.
    """
    name = backend_name or target.default_backend
    if tile is None:
        tile = kernel.tile_for(target, params)
    else:
        kernel.check_fits(target, tile, params)
    started = time.perf_counter()
    with _front_end:
        func = kernel.trace(target, tile, params)
        source = backend(name).lower(func, target, kernel.op)
    return Artifact(kernel.op, target, name, tile, dict(params), replace(source, func=func),
                    time.perf_counter() - started)


def compile_artifact(artifact: Artifact) -> Artifact:
    """The artifact with its compiled files, from the cache where they are there already."""
    way = backend(artifact.backend)
    key = key_of([artifact.source.text, artifact.target.name, artifact.backend, artifact.op,
                  *way.flags(artifact.target), *way.tool_versions()])

    def make(folder: Path) -> None:
        (folder / f"source{artifact.source.suffix}").write_text(artifact.source.text)
        way.compile(artifact.source, artifact.target, folder, artifact.op)

    started = time.perf_counter()
    directory, built = cached(key, make)
    return replace(artifact, directory=directory,
                   compile_seconds=time.perf_counter() - started if built else None)


def build(kernel: Kernel, params: Mapping[str, Any], target: Target, backend_name: str | None = None,
          tile: Tiling | None = None) -> Artifact:
    """Lower and compile."""
    return compile_artifact(lower(kernel, params, target, backend_name, tile))
