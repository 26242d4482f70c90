"""Transpose the last two dimensions of a tensor.

    out[b, j, i] = x[b, i, j]

Shapes: x (B, M, N) of any 1, 2 or 4-byte dtype -> out (B, N, M), contiguous; ``transpose`` is the same without B. Any
size may be 0 or odd. Rows and batches of x may lie anywhere; its last dimension must be contiguous. No arithmetic:
every bit pattern, NaN included, arrives unchanged.

Replaces ``tile_kernels.transpose.transpose`` and ``batched_transpose`` of TileKernels 1.0.0, which take M and N that
are multiples of 64 and row strides that are multiples of 4.
"""

from collections.abc import Iterator
from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

MAX_BLOCKS = 65535              # of a CUDA grid in its second and third dimension
MAX_ROWS = 1 << 21              # of a launch, so that no tile of 64 rows or more passes MAX_BLOCKS
MAX_STRIDE = (1 << 31) - 1      # strides are 32-bit numbers; the offsets made of them are not
SIZE_DIVISORS = (256, 128, 1)   # what a build knows of a size: that it is whole tiles of up to 256 or 128, or nothing
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}   # bits are moved, so each width is one integer type


def _live_bytes(tile: Tiling, item_bytes: int, **_: int) -> int:
    return tile.rows * (tile.row_bytes + tile.pad_bytes) + tile.rows * tile.row_bytes


@kernel("transpose.batched_transpose", tiling=Tiling(rows=128, row_bytes=256, pad_bytes=0, threads=256),
        live_bytes=_live_bytes)
def batched_transpose_kernel(item_bytes: int, row_divisor: int, column_divisor: int, *, tile: Tiling) -> Any:
    """The divisors are known factors of the sizes, which make bounds checks unnecessary. ``pad_bytes`` spreads a
    column of the tile over the banks of a GPU's shared memory; a vector unit that transposes whole blocks wants none.
    """
    batches, rows, columns = T.dynamic("batches"), T.dynamic("rows"), T.dynamic("columns")
    batch_stride, row_stride = T.dynamic("batch_stride"), T.dynamic("row_stride")
    out_batch_stride, out_row_stride = T.dynamic("out_batch_stride"), T.dynamic("out_row_stride")
    dtype = f"int{8 * item_bytes}"
    height, width = tile.rows, tile.row_bytes // item_bytes
    pitch = width + tile.pad_bytes // item_bytes

    @T.prim_func
    def batched_transpose(
        x: T.StridedTensor[(batches, rows, columns), (batch_stride, row_stride, 1), dtype],
        out: T.StridedTensor[(batches, columns, rows), (out_batch_stride, out_row_stride, 1), dtype],
    ):
        with T.Kernel(T.ceildiv(columns, width), T.ceildiv(rows, height), batches,
                      threads=tile.threads) as (column_block, row_block, batch):
            T.assume(rows % row_divisor == 0)
            T.assume(columns % column_divisor == 0)
            taken = T.alloc_shared((height, pitch), dtype)
            turned = T.alloc_fragment((width, height), dtype)
            for i, j in T.Parallel(height, width):
                taken[i, j] = x[batch, row_block * height + i, column_block * width + j]
            for j, i in T.Parallel(width, height):
                turned[j, i] = taken[i, j]
            T.copy(turned, out[batch, column_block * width, row_block * height])

    return batched_transpose


def transpose(x: torch.Tensor) -> torch.Tensor:
    """The transpose of a matrix.

    Args:
        x: (M, N) of a 1, 2 or 4-byte dtype, last dimension contiguous, rows anywhere.

    Returns:
        (N, M), contiguous, of x's dtype.

    Raises ValueError for another rank, item size or last-dimension stride.
    """
    check.tensor(x, "x", rank=2)
    return batched_transpose(x.unsqueeze(0)).squeeze(0)


def batched_transpose(x: torch.Tensor) -> torch.Tensor:
    """The transpose of every matrix of a batch.

    Args:
        x: (B, M, N) of a 1, 2 or 4-byte dtype, last dimension contiguous, rows and batches anywhere.

    Returns:
        (B, N, M), contiguous, of x's dtype.

    Raises ValueError for another rank, item size or last-dimension stride.
    """
    check.tensor(x, "x", rank=3)
    batches, rows, columns = x.shape
    out = torch.empty((batches, columns, rows), dtype=x.dtype, device=x.device)
    transpose_into(x, out)
    return out


def transpose_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """``out[b, j, i] = x[b, i, j]`` for out (B, N, M) with rows anywhere; its padding is not touched."""
    item_bytes = x.element_size()
    check.require(item_bytes in INTEGERS, "x", str(x.dtype).removeprefix("torch."), "have items of 1, 2 or 4 bytes")
    check.unit_stride(x, "x")
    if x.numel() == 0:
        return
    plain = INTEGERS[item_bytes]
    for part, out_part in launches(x.view(plain), out.view(plain)):
        launch(batched_transpose_kernel, part, out_part, item_bytes=item_bytes,
               row_divisor=_size_divisor(part.shape[1]), column_divisor=_size_divisor(part.shape[2]))


def launches(x: torch.Tensor, out: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The parts that one launch each can take: nearly always the whole."""
    far = max(x.stride(0), out.stride(0)) > MAX_STRIDE
    batches = 1 if far else MAX_BLOCKS
    for row in range(0, x.shape[1], MAX_ROWS):
        for batch in range(0, x.shape[0], batches):
            part = x[batch:batch + batches, row:row + MAX_ROWS]
            out_part = out[batch:batch + batches, :, row:row + MAX_ROWS]
            yield (_alone(part), _alone(out_part)) if far else (part, out_part)


def _alone(x: torch.Tensor) -> torch.Tensor:
    """A batch of one without a batch stride."""
    return x.as_strided(x.shape, (0, *x.stride()[1:]))


def _size_divisor(size: int) -> int:
    return next(d for d in SIZE_DIVISORS if size % d == 0)
