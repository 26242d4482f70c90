"""From a kernel and a target to an artifact: trace, lower, compile, each step once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monotile.compat.errors import LoweringError, MonotileError, TargetMismatch
from monotile.targets import sizes
from monotile.targets.backend import Backend, Source, backend
from monotile.targets.cache import cache_root, cached, key_of
from monotile.targets.kernel import Kernel, find_kernel
from monotile.targets.spec import Target
from monotile.targets.spec import target as find_target
from monotile.targets.tiling import Tiling

# TVM's builders and pass contexts are not safe to use from two threads at once.
front_end = threading.RLock()


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

    Raises TileTooLarge before anything else where the tile does not fit, TargetMismatch for a backend that the target
    does not have, and LoweringError.
    """
    name = backend_name or target.default_backend
    if name not in target.backends:
        raise TargetMismatch(f"{name!r} is no backend of {target}, which takes {' or '.join(target.backends)}")
    if tile is None:
        tile = kernel.tile_for(target, params)
    else:
        kernel.check_fits(target, tile, params)
    started = time.perf_counter()
    way = backend(name)
    with front_end:
        func = kernel.trace(target, tile, params)
        try:
            source = way.lower(func, target, kernel.op)
        except MonotileError:
            raise
        except ValueError as error:   # what no backend can take, such as a parameter that is no tensor
            raise LoweringError(kernel.op, target.name, "emit", str(error)) from error
        try:
            grid = sizes.grid(func)
            sizes.evaluator(grid, [s.name for s in source.scalars])
        except ValueError as error:
            raise LoweringError(kernel.op, target.name, "load", str(error)) from error
    return Artifact(kernel.op, target, name, tile, dict(params), replace(source, func=func, grid=grid),
                    time.perf_counter() - started)


def lower_text(op: str, target: str | Target, backend: str | None = None, **params: Any) -> str:
    """The text that a kernel (``quant.per_token_cast``) is lowered to for a target, by name. Compiles nothing."""
    chip = find_target(target) if isinstance(target, str) else target
    return lower(find_kernel(op), params, chip, backend).text


def compile_artifact(artifact: Artifact) -> Artifact:
    """The artifact with its compiled files, from the cache where they are there already."""
    about = {"tile": dict(artifact.tile), "params": dict(artifact.params)}
    started = time.perf_counter()
    directory, built = compile_source(backend(artifact.backend), artifact.source, artifact.target, artifact.op, about)
    return replace(artifact, directory=directory,
                   compile_seconds=time.perf_counter() - started if built else None)


def compile_source(way: Backend, source: Source, target: Target, op: str,
                   about: Mapping[str, Any]) -> tuple[Path, bool]:
    """(the folder with a source and its compiled files, was it built now).

    Raises LoweringError where the compiler refuses; the source is then kept in the cache's folder ``refused``, which
    the error names.
    """
    tools = (*way.flags(target), *way.tool_versions())
    key = key_of([source.text, target.name, way.name, op, *tools])

    def make(folder: Path) -> None:
        (folder / f"source{source.suffix}").write_text(source.text, encoding="utf-8")
        way.compile(source, target, folder, op)

    try:
        return cached(key, make, about={"op": op, "target": target.name, "backend": way.name, "tools": tools, **about})
    except LoweringError as error:
        if error.saved is not None:
            raise
        refused = cache_root() / "refused" / f"{op}-{target.name}-{key[:12]}{source.suffix}"
        refused.parent.mkdir(parents=True, exist_ok=True)
        refused.write_text(source.text, encoding="utf-8")
        raise LoweringError(error.op, error.target, error.stage, error.reason, error.statement, error.line,
                            saved=refused) from error.__cause__


def build(kernel: Kernel, params: Mapping[str, Any], target: Target, backend_name: str | None = None,
          tile: Tiling | None = None) -> Artifact:
    """Lower and compile."""
    return compile_artifact(lower(kernel, params, target, backend_name, tile))
