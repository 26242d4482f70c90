"""Numbers from quantised values and their scales.

    out[t, c] = x[t, c] * sf[t // rows, c // columns]        one float32 product, rounded to the output type

x is e4m3 (NaN 0x7F and 0xFF stay NaN), or e2m1 stored two a byte, the even column in the low nibble. Scales lie as
`scale_layout` says. Rounding to bfloat16 is to nearest even.

Source: TileKernels 1.0.0, quant/cast_back_kernel.py (behaviour and names).
"""

# No `from __future__ import annotations` here: TileLang reads a kernel's annotations as objects.
from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.compat import lowbit
from monotile.quant.casting import load_scales, scale_dtype, storage_dims
from monotile.quant.quantised import QuantTensor, quantised
from monotile.quant.scale_layout import ceil_div
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

OUT_DTYPE = {"bf16": torch.bfloat16, "fp32": torch.float32}


def tile_width(hidden: int, tile: Tiling) -> int:
    """Columns of a tile: a power of two, so that it and the blocks of scales nest; no wider than the row needs."""
    width = 64
    while width < hidden and width < tile.width:
        width *= 2
    return width


def _live_bytes(tile: Tiling, hidden: int, source: str, fmt: str, **_: Any) -> int:
    element = (0.5 + 2 + 4 + 4 if source == "int8" else 1 + 4) + 4 + (2 if fmt == "bf16" else 4)
    return int(tile.tokens * tile_width(hidden, tile) * element)


def unpack_e2m1() -> Any:
    """A macro: numbers (tokens, columns) of bytes (tokens, columns / 2), the even column in the low nibble."""
    @T.macro
    def unpack(x_raw, x_tile):  # type: ignore[no-untyped-def]
        tokens, width = x_tile.shape
        words = T.alloc_fragment((tokens, width // 2), T.int32)
        for t, c in T.Parallel(tokens, width // 2):
            words[t, c] = T.cast(x_raw[t, c], "int32")
        for t, c in T.Parallel(tokens, width):
            x_tile[t, c] = lowbit.e2m1_to_f32(T.if_then_else(c % 2 == 0, words[t, c // 2],
                                                             T.shift_right(words[t, c // 2], 4)))

    return unpack


@kernel("quant.cast_back", tiling=Tiling(tokens=4, width=1024, threads=128), live_bytes=_live_bytes)
def cast_back_kernel(hidden: int, row_stride: int, source: str, source_rows: int, source_columns: int,
                     source_scales: str, fmt: str, *, tile: Tiling) -> Any:
    """``piece`` columns of a tile are under one scale; a byte of two e2m1 is widened once and read by both columns."""
    tokens, width = tile.tokens, tile_width(hidden, tile)
    piece = min(width // 2, source_columns)   # columns of a tile under one scale: two pieces or more, so that tiles
    pieces = width // piece                   # of scales have rows
    across = max(1, width // source_columns)  # scales across a tile
    down = max(1, tokens // source_rows)      # scales down a tile
    packed = source == "int8"
    bytes_across, stored = (hidden // 2, width // 2) if packed else (hidden, width)
    num_tokens, pitch, source_down = T.dynamic("num_tokens"), T.dynamic("pitch"), T.dynamic("source_down")
    sf_dims = storage_dims(source_scales, source_down, ceil_div(hidden, source_columns), source_down)
    repeat = min(tokens, source_rows)         # tokens of a tile under one scale
    get_scales, unpack = load_scales(source_scales, across), unpack_e2m1()
    out_dtype = T.bfloat16 if fmt == "bf16" else T.float32

    @T.prim_func
    def cast_back(
        x: T.StridedTensor[(num_tokens, bytes_across), (row_stride, 1), source],
        sf: T.StridedTensor[sf_dims, (pitch, 1), scale_dtype(source_scales)],
        out: T.Tensor[(num_tokens, hidden), out_dtype],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), ceil_div(hidden, width), threads=tile.threads) as (by, bx):
            first = by * tokens
            column = bx * width
            x_raw = T.alloc_fragment((tokens, stored), source)
            x_tile = T.alloc_fragment((tokens, width), T.float32)
            block_scale = T.alloc_shared((down, across), T.float32)
            scale = T.alloc_fragment((tokens, pieces), T.float32)
            out_tile = T.alloc_fragment((tokens, width), out_dtype)
            get_scales(sf, block_scale, first // source_rows, column // source_columns)
            for d, r, p in T.Parallel(down, repeat, pieces):
                scale[d * repeat + r, p] = block_scale[d, p * piece // source_columns]
            T.copy(x[first, bx * stored], x_raw)
            if packed:
                unpack(x_raw, x_tile)
            else:
                for t, c in T.Parallel(tokens, width):
                    x_tile[t, c] = lowbit.e4m3_to_f32(x_raw[t, c])
            x_pieces = T.reshape(x_tile, (tokens, pieces, piece))
            out_pieces = T.reshape(out_tile, (tokens, pieces, piece))
            for t, p, c in T.Parallel(tokens, pieces, piece):
                out_pieces[t, p, c] = T.cast(x_pieces[t, p, c] * scale[t, p], out_dtype)
            T.copy(out_tile, out[first, column])

    return cast_back


def cast_back(x: QuantTensor, fmt: str, x_block_size: tuple[int, int], x_special_fmt: str | None = None,
              ) -> torch.Tensor:
    """The numbers that a quantised tensor stands for.

    Args:
        x: (values, scales): values float8_e4m3fn (tokens, hidden) or int8 (tokens, hidden / 2) with two e2m1 a byte,
            rows strided as they like; scales in any layout of `scale_layout`. hidden is a multiple of 64.
        fmt: ``"bf16"`` or ``"fp32"``.
        x_block_size: (rows, columns) that a scale is for: powers of two, columns 16 or more, or hidden.
        x_special_fmt: ``None``, or ``"e5m6"`` for values that `per_token_cast_to_e5m6` made.

    Returns:
        out: bfloat16 or float32 (tokens, hidden), rounded once, to nearest even.

    Raises ValueError for an argument that does not fit.
    """
    check.one_of(fmt, "fmt", tuple(OUT_DTYPE))
    check.one_of(x_special_fmt, "x_special_fmt", (None, "e5m6"))
    if x_special_fmt == "e5m6":
        raise ValueError("x_special_fmt 'e5m6' is not built yet")
    source = quantised(x, x_block_size)
    check.require(source.hidden > 0, "x", tuple(source.values.shape), "have at least one column")
    check.multiple_of(source.hidden, "hidden", 64)
    storage = source.storage()
    out = torch.empty((source.tokens, source.hidden), dtype=OUT_DTYPE[fmt], device=source.values.device)
    if source.tokens:
        launch(cast_back_kernel, source.values, storage, out, hidden=source.hidden, fmt=fmt, **source.params())
    return out


def per_token_cast_back(x: QuantTensor, fmt: str, num_per_channels: int, x_special_fmt: str | None = None,
                        ) -> torch.Tensor:
    """:func:`cast_back` of scales for ``num_per_channels`` channels of one token."""
    return cast_back(x, fmt, (1, num_per_channels), x_special_fmt)
