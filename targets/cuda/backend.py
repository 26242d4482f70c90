"""The ``cuda`` backend: TileLang's own lowering, compiler call and launch.

Text comes out anywhere; a cubin wherever there is an nvcc; a call needs a GPU. TileLang launches on torch's current
stream and keeps its own cache of host code, so `load` compiles from the PrimFunc and needs no files of ours.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import LoweringError, ToolchainMissing
from monotile.targets.backend import Runner, Source, signature
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

CUBIN = "kernel.cubin"

# Every kernel here is bound by memory: dedicating warps to copies costs occupancy and gains nothing.
PASS_CONFIGS: dict[str, Any] = {"tl.disable_warp_specialized": True}


class CudaBackend:
    name = "cuda"
    compiles_before_load = False

    def lower(self, func: Any, target: Target, op: str) -> Source:
        from tilelang import tvm
        from tilelang.engine.lower import lower

        chip = _tvm_target(target)
        try:
            with chip, tvm.transform.PassContext(config=PASS_CONFIGS):
                text = lower(func, target=chip, enable_device_compile=False).kernel_source
        except Exception as error:   # TVM raises its own types; the reader needs the kernel's name and the first line
            raise LoweringError(op=op, target=target.name, stage="emit", reason=_last_line(error)) from error
        tensors, scalars = signature(func)
        return Source(text=str(text), suffix=".cu", name=str(func.attrs["global_symbol"]), tensors=tensors,
                      scalars=scalars)

    def flags(self, target: Target) -> tuple[str, ...]:
        return (target.arch, *(f"{key}={value}" for key, value in PASS_CONFIGS.items()))

    def tool_versions(self) -> tuple[str, ...]:
        import tilelang

        return (f"tilelang {tilelang.__version__}", _nvcc_version())

    def compile(self, source: Source, target: Target, directory: Path, op: str) -> None:
        """A cubin by nvcc, with the command that TileLang itself uses."""
        _nvcc()
        from tilelang.contrib import nvcc
        from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

        number = target.arch.removeprefix("sm_")
        options = ["-std=c++20", f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]
        try:
            cubin = nvcc.compile_cuda(source.text, "cubin", [f"-arch=sm_{number}"], options=options)
        except RuntimeError as error:
            raise LoweringError(op=op, target=target.name, stage="compile", reason=_first_error(str(error))) from error
        (directory / CUBIN).write_bytes(bytes(cubin))

    def load(self, source: Source, target: Target, directory: Path, executor: str, op: str) -> Runner:
        import tilelang

        _nvcc()
        try:
            compiled = tilelang.compile(source.func, target=_tvm_target(target), pass_configs=dict(PASS_CONFIGS))
        except Exception as error:   # as in lower
            raise LoweringError(op=op, target=target.name, stage="compile", reason=_last_line(error)) from error

        def run(tensors: Sequence[torch.Tensor]) -> None:
            compiled(*tensors)

        return run


def _tvm_target(target: Target) -> Any:
    from tilelang import tvm

    return tvm.target.Target({"kind": "cuda", "arch": target.arch})


def _nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        raise ToolchainMissing("compiling for CUDA needs nvcc, which is not on PATH: install the CUDA toolkit (12.4 "
                               "or newer) and add its bin folder to PATH")
    return found


def _nvcc_version() -> str:
    printed = subprocess.run([_nvcc(), "--version"], capture_output=True, text=True, check=False).stdout
    return printed.strip().splitlines()[-1] if printed.strip() else "nvcc"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:400]


def _first_error(output: str) -> str:
    for line in output.splitlines():
        if "error" in line.lower():
            return line.strip()[:400]
    return output.strip()[:400]
