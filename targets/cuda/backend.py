"""The ``cuda`` backend: TileLang lowers, nvcc compiles, the driver launches.

Text comes out anywhere, a cubin wherever there is an nvcc (its version is part of the cache's key, so that it must be
there for a cached cubin too), and a call needs a GPU. Files of a compiled kernel: ``kernel.cubin`` and
``compiled.json`` (registers, spills, shared memory).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import UnsupportedOnTarget
from monotile.targets import sizes
from monotile.targets.backend import Runner, Source
from monotile.targets.cuda import nvcc
from monotile.targets.cuda.driver import Function
from monotile.targets.cuda.lowering import PASS_CONFIGS, VECTOR_BYTES, Launch, launch_of, lower_to_text
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

CUBIN, REPORT = "kernel.cubin", "compiled.json"


class CudaBackend:
    name = "cuda"

    def lower(self, func: Any, target: Target, op: str) -> Source:
        """The vectorised form. Raises LoweringError."""
        return lower_to_text(func, target, op)

    def flags(self, target: Target) -> tuple[str, ...]:
        return (*nvcc.command(target), *(f"{key}={value}" for key, value in PASS_CONFIGS.items()))

    def tool_versions(self) -> tuple[str, ...]:
        import tilelang  # the text includes its templates

        return (f"tilelang {tilelang.__version__}", f"nvcc {nvcc.version()}")

    def compile(self, source: Source, target: Target, directory: Path, op: str) -> None:
        usage = nvcc.compile_cubin(directory / f"source{source.suffix}", directory / CUBIN, target, op)
        report = {"compiler": f"nvcc {nvcc.version()}", **asdict(usage), "launch": asdict(launch_of(source.text))}
        (directory / REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")

    def accepted(self, directory: Path) -> str | None:
        return "nvcc" if (directory / CUBIN).exists() else None

    def explain(self, source: Source) -> dict[str, Any]:
        launch = launch_of(source.text)
        x, y, z = launch.block
        return {"threads": x * y * z, "dynamic_shared_bytes": launch.shared_bytes, "grid": list(launch.grid)}

    def load(self, source: Source, target: Target, directory: Path, executor: str, op: str) -> Runner:
        return _Kernel(source, target, directory, op)


class _Kernel:
    """Both forms of one kernel; the unaligned one is made when a call first needs it."""

    def __init__(self, source: Source, target: Target, directory: Path, op: str) -> None:
        self._source, self._target, self._op = source, target, op
        self._symbols = [s.value_from for s in source.scalars]
        launch = launch_of(source.text)
        names = [s.name for s in source.scalars]
        self._units = [(names.index(name), unit) for name, unit in launch.aligned if unit > 1]
        self._aligned = _caller(launch, names, directory, op)
        self._unaligned: Callable[..., None] | None = None
        self._lock = threading.Lock()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        import torch

        symbols = [value_from(tensors) for value_from in self._symbols]
        pointers = [t.data_ptr() for t in tensors]
        aligned = not any(symbols[i] % unit for i, unit in self._units) and not any(
            pointer % VECTOR_BYTES for pointer in pointers)
        call = self._aligned if aligned else self._without_vectors()
        device = tensors[0].device.index
        call(device, torch.cuda.current_stream(device).cuda_stream, symbols, pointers)

    def _without_vectors(self) -> Callable[..., None]:
        with self._lock:
            if self._unaligned is None:
                from monotile.targets.build import compile_source, front_end

                if self._source.func is None:
                    raise UnsupportedOnTarget(f"{self._op}: the kernel compiled ahead of time takes rows on 16 bytes "
                                              "only, and these are not: unset MONOTILE_KERNELS")
                with front_end:
                    source = lower_to_text(self._source.func, self._target, self._op, vectors=False)
                source = replace(source, func=self._source.func)
                directory, _ = compile_source(CudaBackend(), source, self._target, self._op, {"vectors": False})
                self._unaligned = _caller(launch_of(source.text), [s.name for s in source.scalars], directory,
                                          self._op)
            return self._unaligned


def _caller(launch: Launch, symbols: Sequence[str], directory: Path, op: str) -> Callable[..., None]:
    function = Function((directory / CUBIN).read_bytes(), launch.kernel, op, launch.block, launch.shared_bytes,
                        [kind for kind, _ in launch.arguments])
    grid = sizes.evaluator([*launch.grid, *["1"] * (3 - len(launch.grid))], symbols)
    arguments = [(kind == "tensor", index) for kind, index in launch.arguments]

    def call(device: int, stream: int, values: Sequence[int], pointers: Sequence[int]) -> None:
        x, y, z = grid(*values)
        if x and y and z:
            function.launch(device, stream, (x, y, z),
                            [pointers[index] if is_tensor else values[index] for is_tensor, index in arguments])

    return call
