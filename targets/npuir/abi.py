"""The calling convention of a kernel, as Huawei's launchers expect it.

Sources: the page on TileLang in Ascend/AscendNPU-IR (docs/source/en/developer_guide/conversion/
tile_lang_interface.md) gives the module and function attributes and the order of the arguments; triton-ascend's
launcher packs the same. No device has run a kernel of ours in this form yet.

Order: the ffts base address, the lock buffer, the workspace, the tensors as bare pointers, the scalars as i32, then
the grid's sizes and the program's ids (six i32, unused by a persistent kernel). On the device a memref is its pointer
alone; lock and workspace are null where the compiled module asks for none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from monotile.targets.npuir.mlir import memref

_GRID = ("grid_x", "grid_y", "grid_z", "program_x", "program_y", "program_z")


def module(name: str, chip: str, tensors: Sequence[tuple[str, str]], scalars: Sequence[str],
           body: Sequence[str]) -> str:
    """The module's text. ``tensors``: (SSA name, element type); ``scalars``: SSA names."""
    byte_buffer = memref(["?"], "i8", "gm")
    arguments = [
        "%ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>}",
        f"%lock: {byte_buffer}",
        f"%workspace: {byte_buffer}",
        *[f"{ssa}: {memref(['?'], element, 'gm')}" for ssa, element in tensors],
        *[f"{ssa}: i32" for ssa in scalars],
        *[f"%{field}: i32" for field in _GRID],
    ]
    joined = ",\n    ".join(arguments)
    return "\n".join([
        f'module attributes {{hacc.target = #hacc.target<"{chip}">, '
        "hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {",
        f"func.func @{name}(",
        f"    {joined}",
        ") attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, "
        "hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, "
        'mix_mode = "aiv"} {',
        "  hivm.hir.set_ffts_base_addr %ffts",
        *body,
        "  return",
        "}",
        "}",
        "",
    ])


def pack(tensors: Sequence[object], scalars: Sequence[int]) -> list[object]:
    """The argument values in order, for an executor that needs neither lock, workspace nor ffts."""
    import numpy as np

    nothing = np.zeros(0, np.uint8)
    return [0, nothing, nothing, *tensors, *scalars, 1, 1, 1, 0, 0, 0]


@dataclass(frozen=True)
class Buffers:
    """Device memory that a compiled module asks of its launcher."""

    workspace_bytes: int   # of one block
    locks: int             # 64-bit words
    lock_value: int        # what each holds at first


def buffers(final_ir: str, name: str) -> Buffers:
    """What the compiler's host functions in the final IR say: each returns a constant, and is there where needed.

    Raises ValueError where one returns anything else.
    """
    return Buffers(_host_constant(final_ir, f"{name}_infer_workspace_shape_function"),
                   _host_constant(final_ir, f"{name}_infer_sync_block_lock_num_function"),
                   _host_constant(final_ir, f"{name}_infer_sync_block_lock_init_function"))


def _host_constant(final_ir: str, function: str) -> int:
    found = re.search(rf"func\.func @{re.escape(function)}\(.*?^  }}$", final_ir, re.MULTILINE | re.DOTALL)
    if found is None:
        return 0
    returned = re.search(r"return (%\w+) :", found[0])
    constant = returned and re.search(rf"{returned[1]} = arith\.constant (-?\d+) : (?:i64|index)$", found[0],
                                      re.MULTILINE)
    if not constant:
        raise ValueError(f"{function} returns no constant")
    return int(constant[1])


def device_arguments(tensors: int, scalars: int, *, synchronised: bool) -> tuple[str, ...]:
    """The kinds of the entry's arguments for :class:`monotile.targets.acl.Function`, in order.

    ``synchronised``: the chip synchronises its cores through memory at an address of the runtime's (ffts); the 950
    does not, and its kernels get 0.
    """
    return ("sync_address" if synchronised else "pointer", "pointer", "pointer", *["pointer"] * tensors,
            *["int32"] * (scalars + len(_GRID)))


def device_values(lock: int, workspace: int, tensors: Sequence[int], scalars: Sequence[int],
                  blocks: int) -> list[int]:
    """The values in order, without the sync address. ``tensors``, ``lock`` and ``workspace`` are device addresses."""
    return [lock, workspace, *tensors, *scalars, blocks, 1, 1, 0, 0, 0]
