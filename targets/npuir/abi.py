"""The calling convention of a kernel, as Huawei's launchers expect it.

Sources: the page on TileLang in Ascend/AscendNPU-IR (docs/source/en/developer_guide/conversion/
tile_lang_interface.md) gives the module and function attributes and the order of the arguments; triton-ascend's
launcher packs the same. No device has run a kernel of ours in this form yet.

Order: the ffts base address, the lock buffer, the workspace, the tensors as bare pointers, the scalars as i32, then
the grid's sizes and the program's ids (six i32, unused by a persistent kernel).
"""

from __future__ import annotations

from collections.abc import Sequence

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
