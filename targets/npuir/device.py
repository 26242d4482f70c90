"""A compiled module on an NPU: its arguments in the order of abi, launched through acl. No NPU has run one yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monotile.compat.errors import LoweringError, ToolchainMissing
from monotile.targets import acl, npu
from monotile.targets.backend import Source
from monotile.targets.npuir import abi, toolchain
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch


def binary(source: Source, target: Target, file: Path, op: str) -> bytes:
    """The device binary: the file that compiling left or, where hivmc made none then, what it makes now.

    Raises ToolchainMissing without hivmc, and LoweringError with what it says.
    """
    if file.exists():
        return file.read_bytes()
    if toolchain.hivmc_version(target.generation) is None:
        raise ToolchainMissing(f"a binary for {target.name} needs CANN's {toolchain.hivmc_name(target.generation)}, "
                               "which bishengir-compile looks for on PATH: install CANN and source its set_env.sh, "
                               "or set KERNEL_EXECUTOR=emulator and use cpu tensors")
    compiled = toolchain.compile_to_final(source.text, target.chip, target.generation, op)
    if compiled.binary is None:
        raise LoweringError(op, target.name, "compile", f"{toolchain.hivmc_name(target.generation)} made no binary: "
                            f"{compiled.refused}")
    return compiled.binary


def runner(source: Source, target: Target, code: bytes, final_ir: str,
           op: str) -> Callable[[Sequence[torch.Tensor]], None]:
    """What launches a binary on the current stream of the tensors' NPU, on all of its vector cores."""
    try:
        needs = abi.buffers(final_ir, source.name)
    except ValueError as error:
        raise LoweringError(op, target.name, "load", str(error)) from error
    function = acl.Function(
        code, source.name, op, target.name, magic=acl.VECTOR_CORE,
        arguments=abi.device_arguments(len(source.tensors), len(source.scalars),
                                       synchronised=target.generation == "c220"))
    unsynchronised = [] if target.generation == "c220" else [0]

    import torch

    def run(tensors: Sequence[torch.Tensor]) -> None:
        scalars = [s.value_from(tensors) for s in source.scalars]
        pointers = [t.data_ptr() for t in tensors]
        with npu.on_device_of(tensors, op) as (device, stream):
            blocks = npu.blocks_of(target, device)
            # Kept until the launch is on its stream; torch_npu hands freed memory to later work of that stream only.
            workspace = _memory(tensors[0], needs.workspace_bytes * blocks, torch.uint8, 0)
            locks = _memory(tensors[0], needs.locks, torch.int64, needs.lock_value)
            values = abi.device_values(_address(locks), _address(workspace), pointers, scalars, blocks)
            function.launch(device, stream(), blocks, [*unsynchronised, *values])

    return run


def _memory(beside: torch.Tensor, count: int, dtype: torch.dtype, value: int) -> torch.Tensor | None:
    return beside.new_full((count,), value, dtype=dtype) if count else None


def _address(memory: torch.Tensor | None) -> int:
    return 0 if memory is None else memory.data_ptr()
