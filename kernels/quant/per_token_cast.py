"""Cast the rows of a matrix to e4m3 or e2m1, with one scale for each group of channels.

    amax      = max |x| over the group, NaN ignored
    clamped   = max(amax, smallest amax)                 e4m3: 1e-4, e2m1: 6 * 2**-126
    raw       : sf = clamped / largest                   largest: e4m3 448, e2m1 6
                inverse = largest / clamped              its own division, not 1 / sf
    rounded   : e = ceil(log2(clamped / largest))        from the bits of the quotient
                sf = 2**e, inverse = 2**-e               0 where sf is infinite
    out       = x * inverse, to nearest even, saturating; NaN to 0x7F (e4m3) or +6 (e2m1)

Input that is quantised already (values and scales) is scaled by ``x_sf * inverse``, multiplied first. With scales
given, ``inverse = 1 / sf``. A group's NaN or infinity does not touch its neighbours. A last group may be short.

Scales lie as `scale_layout` says: row-major, column-major with columns on 16 bytes, or packed ue8m0 bytes.
e2m1 is stored two a byte in int8, the even column in the low nibble.

Source: TileKernels 1.0.0, quant/per_token_cast_kernel.py and quant/common.py (behaviour and names).
"""

# No `from __future__ import annotations` here: TileLang reads a kernel's annotations as objects.
import math
from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.compat import lowbit
from monotile.quant import scale_layout
from monotile.quant.casting import (
    LARGEST,
    OUT_DTYPE,
    load_scales,
    magnitude,
    out_tensor,
    scale_and_inverse,
    scale_dtype,
    storage_dims,
    store_scales,
    store_split_values,
    store_values,
)
from monotile.quant.scale_layout import COLUMN, PACKED, ROW, ScaleLayout, ceil_div
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

QuantTensor = tuple[torch.Tensor, torch.Tensor]

GROUPS = (16, 32, 64, 128)
LONGEST_TILE = 8192     # channels of a whole row that every chip holds with its codes
LONGEST_RECAST = 7168   # the same for quantised input, which is decoded beside them
WHOLE_ROW = 1024   # a row's width is a multiple of this: whole vectors for each thread, whole blocks of its scales


# ---------------------------------------------------------------------- what the sources share
def tile_shape(hidden: int, group: int, tile: Tiling) -> tuple[int, int]:
    """(tokens, columns) of a tile: a power of two of groups up to ``tile.width`` columns.

    Where a whole row is one group it is the tile's width, and as many tokens (a power of two) make up for it.
    """
    if group == hidden:
        width = scale_layout.align(hidden, WHOLE_ROW)
        return 1 << (max(1, tile.tokens * tile.width // width).bit_length() - 1), width
    width = group
    while width < hidden and width < tile.width:
        width *= 2
    return tile.tokens, width


def _live_bytes(tile: Tiling, hidden: int, group: int, fmt: str, **_: Any) -> int:
    tokens, width = tile_shape(hidden, group, tile)
    element = 4 + 4 + 4 + (1 if fmt == "e4m3" else 2.5)   # as read, the tile, its magnitudes, its codes
    return int(tokens * width * element)


# ---------------------------------------------------------------------- kernels
@kernel("quant.per_token_cast", tiling=Tiling(tokens=4, width=1024, threads=128), live_bytes=_live_bytes)
def per_token_cast_kernel(hidden: int, row_stride: int, group: int, source: str, fmt: str, scales: str, rounded: bool,
                          values: bool, *, tile: Tiling) -> Any:
    """Scales and, with ``values``, codes of a float tensor.

    The row stride is a compile-time number: only then is it known that rows allow wide loads.
    """
    tokens, width = tile_shape(hidden, group, tile)
    whole = group == hidden
    size = width if whole else group
    groups, num_groups = width // size, 1 if whole else ceil_div(hidden, group)
    num_tokens, pitch = T.dynamic("num_tokens"), T.dynamic("pitch")
    out_columns, out_dtype = out_tensor(fmt, hidden, split=False)
    put_values, put_scales = store_values(fmt, groups, size), store_scales(scales, groups)
    packed = scales == PACKED
    ragged = packed and num_groups % scale_layout.PACK != 0 and groups > 1

    @T.prim_func
    def per_token_cast(
        x: T.StridedTensor[(num_tokens, hidden), (row_stride, 1), source],
        out: T.Tensor[(num_tokens, out_columns), out_dtype],
        out_sf: T.Tensor[storage_dims(scales, num_tokens, num_groups, pitch), scale_dtype(scales)],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), ceil_div(hidden, width), threads=tile.threads) as (by, bx):
            first = by * tokens
            column = bx * width
            x_raw = T.alloc_fragment((tokens, width), source)
            x_tile = T.alloc_fragment((tokens, width), T.float32)
            sizes = T.alloc_fragment((tokens, width), T.float32)
            amax = T.alloc_fragment((tokens, groups), T.float32)
            factor = T.alloc_fragment((tokens, groups), T.float32)
            scale = T.alloc_shared((tokens, groups), scale_dtype(scales)) if packed else T.alloc_fragment(
                (tokens, groups), T.float32)
            T.copy(x[first, column], x_raw)
            T.copy(x_raw, x_tile)
            for t, c in T.Parallel(tokens, width):
                sizes[t, c] = magnitude(x_tile[t, c])
            T.reduce_max(T.reshape(sizes, (tokens, groups, size)), amax, dim=2)
            for t, g in T.Parallel(tokens, groups):
                sf, exponent, inverse = scale_and_inverse(amax[t, g], fmt, rounded)
                factor[t, g] = inverse
                if packed:
                    if ragged:
                        scale[t, g] = T.if_then_else(bx * groups + g < num_groups, exponent, 0)
                    else:
                        scale[t, g] = exponent
                else:
                    scale[t, g] = sf
            put_scales(scale, out_sf, first, bx * groups, num_tokens)
            if values:
                put_values(x_tile, factor, out, first, column)

    return per_token_cast


@kernel("quant.per_token_cast_long_row", tiling=Tiling(tokens=4, width=1024, threads=128),
        live_bytes=lambda tile, **_: 15 * tile.tokens * tile.width)
def per_token_cast_long_row_kernel(hidden: int, row_stride: int, source: str, fmt: str, scales: str, rounded: bool,
                                   values: bool, *, tile: Tiling) -> Any:
    """One scale a row, for rows that no chip holds: they are read once for the scale, and once for the codes."""
    tokens, width = tile.tokens, tile.width
    num_tokens, pitch = T.dynamic("num_tokens"), T.dynamic("pitch")
    out_columns, out_dtype = out_tensor(fmt, hidden, split=False)
    put_values, put_scales = store_values(fmt, 1, width), store_scales(scales, 1)
    packed = scales == PACKED

    @T.prim_func
    def per_token_cast_long_row(
        x: T.StridedTensor[(num_tokens, hidden), (row_stride, 1), source],
        out: T.Tensor[(num_tokens, out_columns), out_dtype],
        out_sf: T.Tensor[storage_dims(scales, num_tokens, 1, pitch), scale_dtype(scales)],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), threads=tile.threads) as by:
            first = by * tokens
            x_raw = T.alloc_fragment((tokens, width), source)
            x_tile = T.alloc_fragment((tokens, width), T.float32)
            sizes = T.alloc_fragment((tokens, width), T.float32)
            amax = T.alloc_fragment((tokens,), T.float32)
            here = T.alloc_fragment((tokens,), T.float32)
            factor = T.alloc_fragment((tokens, 1), T.float32)
            scale = T.alloc_shared((tokens, 1), scale_dtype(scales)) if packed else T.alloc_fragment(
                (tokens, 1), T.float32)
            T.fill(amax, 0)
            for part in T.serial(ceil_div(hidden, width)):
                T.copy(x[first, part * width], x_raw)
                T.copy(x_raw, x_tile)
                for t, c in T.Parallel(tokens, width):
                    sizes[t, c] = magnitude(x_tile[t, c])
                T.reduce_max(sizes, here, dim=1)
                for t in T.Parallel(tokens):
                    amax[t] = T.max(amax[t], here[t])
            for t, g in T.Parallel(tokens, 1):
                sf, exponent, inverse = scale_and_inverse(amax[t], fmt, rounded)
                factor[t, g] = inverse
                scale[t, g] = exponent if packed else sf
            put_scales(scale, out_sf, first, 0, num_tokens)
            if values:
                for part in T.serial(ceil_div(hidden, width)):
                    T.copy(x[first, part * width], x_raw)
                    T.copy(x_raw, x_tile)
                    put_values(x_tile, factor, out, first, part * width)

    return per_token_cast_long_row


def _cast_live_bytes(tile: Tiling, fmt: str, **_: Any) -> int:
    return int(tile.tokens * tile.width * (4 + 4 + (1 if fmt == "e4m3" else 2.5)))


@kernel("quant.per_token_cast_with_precomputed_sf", tiling=Tiling(tokens=4, width=1024, threads=128),
        live_bytes=_cast_live_bytes)
def per_token_cast_with_precomputed_sf_kernel(hidden: int, row_stride: int, group: int, source: str, fmt: str,
                                              scales: str, *, tile: Tiling) -> Any:
    """Codes of a float tensor under scales that are given."""
    whole = group == hidden   # then every tile is under the one scale
    tokens, width = (tile.tokens, tile.width) if whole else tile_shape(hidden, group, tile)
    size = width if whole else group
    groups, num_groups = width // size, 1 if whole else ceil_div(hidden, group)
    num_tokens, pitch = T.dynamic("num_tokens"), T.dynamic("pitch")
    columns_of_scales = storage_dims(scales, num_tokens, num_groups, num_tokens)
    out_columns, out_dtype = out_tensor(fmt, hidden, split=False)
    put_values, get_scales = store_values(fmt, groups, size), load_scales(scales, groups)

    @T.prim_func
    def per_token_cast_with_precomputed_sf(
        x: T.StridedTensor[(num_tokens, hidden), (row_stride, 1), source],
        sf: T.StridedTensor[columns_of_scales, (pitch, 1), scale_dtype(scales)],
        out: T.Tensor[(num_tokens, out_columns), out_dtype],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), ceil_div(hidden, width), threads=tile.threads) as (by, bx):
            first = by * tokens
            column = bx * width
            x_raw = T.alloc_fragment((tokens, width), source)
            x_tile = T.alloc_fragment((tokens, width), T.float32)
            scale = T.alloc_fragment((tokens, groups), T.float32)
            factor = T.alloc_fragment((tokens, groups), T.float32)
            T.copy(x[first, column], x_raw)
            T.copy(x_raw, x_tile)
            get_scales(sf, scale, first, 0 if whole else bx * groups)
            for t, g in T.Parallel(tokens, groups):
                factor[t, g] = T.float32(1) / scale[t, g]
            put_values(x_tile, factor, out, first, column)

    return per_token_cast_with_precomputed_sf


def _recast_live_bytes(tile: Tiling, hidden: int, group: int, fmt: str, source: str, **_: Any) -> int:
    tokens, width = tile_shape(hidden, group, tile)
    element = 0.5 + 4 + 2 + 1 if source == "int8" else 1 + 4 + 4 + (1 if fmt == "e4m3" else 2.5)
    return int(tokens * width * element)


@kernel("quant.per_token_recast", tiling=Tiling(tokens=2, width=1024, threads=128), live_bytes=_recast_live_bytes)
def per_token_recast_kernel(hidden: int, row_stride: int, group: int, source: str, source_rows: int,
                            source_columns: int, source_scales: str, fmt: str, scales: str, rounded: bool,
                            values: bool, *, tile: Tiling) -> Any:
    """Scales and, with ``values``, codes of a tensor that is quantised in blocks of source_rows x source_columns.

    Blocks and tiles are powers of two, so that they nest: a *piece* is a run of columns over which both scales are
    constant. A byte of e2m1 is two neighbours; they stay apart, in a tile of even and a tile of odd columns, and meet
    again in an item of the output.
    """
    tokens, width = tile_shape(hidden, group, tile)
    whole = group == hidden
    size = width if whole else group
    groups, num_groups = width // size, 1 if whole else ceil_div(hidden, group)
    piece = math.gcd(size, source_columns)
    pieces, each = width // piece, size // piece   # of a tile, of a group
    source_groups = ceil_div(width, source_columns)
    down, repeat = max(1, tokens // source_rows), min(tokens, source_rows)
    num_tokens, pitch, source_pitch = T.dynamic("num_tokens"), T.dynamic("pitch"), T.dynamic("source_pitch")
    source_down = T.dynamic("source_down")
    source_across = ceil_div(hidden, source_columns)
    split = source == "int8"
    apart = 2 if split else 1                # columns that one item of a tile stands for
    items, run = width // apart, piece // apart
    out_columns, out_dtype = out_tensor(fmt, hidden, split)
    put_values, put_scales = store_values(fmt, pieces, run), store_scales(scales, groups)
    put_split_values = store_split_values(fmt, pieces, run)
    get_scales = load_scales(source_scales, source_groups)
    packed = scales == PACKED
    ragged = packed and num_groups % scale_layout.PACK != 0 and groups > 1

    @T.prim_func
    def per_token_recast(
        x: T.StridedTensor[(num_tokens, hidden // apart), (row_stride, 1), source],
        x_sf: T.StridedTensor[storage_dims(source_scales, source_down, source_across, source_down),
                              (source_pitch, 1), scale_dtype(source_scales)],
        out: T.Tensor[(num_tokens, out_columns), out_dtype],
        out_sf: T.Tensor[storage_dims(scales, num_tokens, num_groups, pitch), scale_dtype(scales)],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), ceil_div(hidden, width), threads=tile.threads) as (by, bx):
            first = by * tokens
            column = bx * width
            x_raw = T.alloc_fragment((tokens, items), source)
            x_tile = T.alloc_fragment((tokens, items), T.float32)
            x_pieces = T.reshape(x_tile, (tokens, pieces, run))
            sizes = T.alloc_fragment((tokens, pieces, run), T.float32)
            source_scale = T.alloc_shared((down, source_groups), T.float32)
            fine_scale = T.alloc_fragment((tokens, pieces), T.float32)
            amax = T.alloc_fragment((tokens, groups), T.float32)
            factor = T.alloc_fragment((tokens, pieces), T.float32)
            inverse_shared = T.alloc_shared((tokens, groups), T.float32)
            scale = T.alloc_shared((tokens, groups), scale_dtype(scales)) if packed else T.alloc_fragment(
                (tokens, groups), T.float32)

            get_scales(x_sf, source_scale, first // source_rows, column // source_columns)
            for d, r, p in T.Parallel(down, repeat, pieces):
                fine_scale[d * repeat + r, p] = source_scale[d, p * piece // source_columns]

            T.copy(x[first, column // apart], x_raw)
            if split:
                x_odd = T.alloc_fragment((tokens, items), T.float32)
                odd_pieces = T.reshape(x_odd, (tokens, pieces, run))
                for t, c in T.Parallel(tokens, items):
                    x_tile[t, c] = lowbit.e2m1_to_f32(T.cast(x_raw[t, c], "int32"))
                    x_odd[t, c] = lowbit.e2m1_to_f32(T.shift_right(T.cast(x_raw[t, c], "int32"), 4))
                for t, p, c in T.Parallel(tokens, pieces, run):
                    sizes[t, p, c] = T.max(magnitude(x_pieces[t, p, c] * fine_scale[t, p]),
                                           magnitude(odd_pieces[t, p, c] * fine_scale[t, p]))
            else:
                for t, c in T.Parallel(tokens, items):
                    x_tile[t, c] = lowbit.e4m3_to_f32(x_raw[t, c])
                for t, p, c in T.Parallel(tokens, pieces, run):
                    sizes[t, p, c] = magnitude(x_pieces[t, p, c] * fine_scale[t, p])
            T.reduce_max(T.reshape(sizes, (tokens, groups, size // apart)), amax, dim=2)
            for t, g in T.Parallel(tokens, groups):
                sf, exponent, inverse = scale_and_inverse(amax[t, g], fmt, rounded)
                inverse_shared[t, g] = inverse
                if packed:
                    if ragged:
                        scale[t, g] = T.if_then_else(bx * groups + g < num_groups, exponent, 0)
                    else:
                        scale[t, g] = exponent
                else:
                    scale[t, g] = sf
            put_scales(scale, out_sf, first, bx * groups, num_tokens)
            if values:
                for t, p in T.Parallel(tokens, pieces):
                    factor[t, p] = fine_scale[t, p] * inverse_shared[t, p // each]
                if split:
                    put_split_values(x_tile, x_odd, factor, out, first, column)
                else:
                    put_values(x_tile, factor, out, first, column)

    return per_token_recast


# ---------------------------------------------------------------------- the ops
def per_token_cast(x: torch.Tensor | QuantTensor, fmt: str, num_per_channels: int,
                   x_block_size: tuple[int, int] | None = None, use_tma_aligned_col_major_sf: bool = False,
                   round_sf: bool = False, use_packed_ue8m0: bool = False) -> QuantTensor:
    """Quantise each row in groups of channels.

    Args:
        x: (tokens, hidden) bfloat16 or float32, rows strided as they like; or (values, scales) of an earlier
            quantisation: values float8_e4m3fn (tokens, hidden) or int8 (tokens, hidden / 2) with two e2m1 a byte,
            scales in any layout of `scale_layout` for blocks of ``x_block_size``.
        fmt: ``"e4m3"`` or ``"e2m1"``.
        num_per_channels: channels a scale: 16, 32, 64, 128, or hidden (a multiple of 64) for one scale a row.
        x_block_size: (rows, columns), powers of two, of the scales that come with ``x``; None for a float ``x``.
        use_tma_aligned_col_major_sf: scales column-major, columns on 16 bytes.
        round_sf: round scales up to powers of two.
        use_packed_ue8m0: scales as ue8m0 bytes, four to an int32; needs column-major and rounded scales.

    Returns:
        (out, out_sf): float8_e4m3fn (tokens, hidden) or int8 (tokens, hidden / 2), and the scales.

    Rounding is to nearest even and saturates. Raises ValueError for an argument that does not fit.
    """
    request = _Request(x, fmt, num_per_channels, x_block_size, use_tma_aligned_col_major_sf, round_sf,
                       use_packed_ue8m0)
    return request.quantise(values=True)


def per_token_cast_with_sf_only(x: torch.Tensor | QuantTensor, fmt: str, num_per_channels: int,
                                x_block_size: tuple[int, int] | None = None,
                                use_tma_aligned_col_major_sf: bool = False, round_sf: bool = False,
                                use_packed_ue8m0: bool = False) -> torch.Tensor:
    """The scales of :func:`per_token_cast` alone. Arguments, layouts and errors are its."""
    request = _Request(x, fmt, num_per_channels, x_block_size, use_tma_aligned_col_major_sf, round_sf,
                       use_packed_ue8m0)
    return request.quantise(values=False)[1]


def per_token_cast_with_precomputed_sf(x: torch.Tensor, fmt: str, num_per_channels: int, sf: torch.Tensor,
                                       x_block_size: tuple[int, int] | None = None,
                                       use_tma_aligned_col_major_sf: bool = False, round_sf: bool = False,
                                       use_packed_ue8m0: bool = False) -> torch.Tensor:
    """The values of :func:`per_token_cast` under given scales: ``x * (1 / sf)``.

    ``sf`` lies as the flags say. ``x`` is bfloat16 or float32; ``x_block_size`` must be None. Returns ``out``.
    """
    request = _Request(x, fmt, num_per_channels, x_block_size, use_tma_aligned_col_major_sf, round_sf,
                       use_packed_ue8m0)
    return request.with_scales(sf)


class _Request:
    """Checked arguments of the three ops."""

    def __init__(self, x: torch.Tensor | QuantTensor, fmt: str, num_per_channels: int,
                 x_block_size: tuple[int, int] | None, column_major: bool, rounded: bool, packed: bool) -> None:
        if fmt == "e5m6":
            raise ValueError("fmt 'e5m6' is not built yet; 'e4m3' and 'e2m1' are")
        check.one_of(fmt, "fmt", tuple(LARGEST))
        self.fmt, self.group, self.rounded = fmt, num_per_channels, rounded
        self.x_sf: torch.Tensor | None = None
        self.source_layout: ScaleLayout | None = None
        if isinstance(x, tuple):
            x = self._take_quantised(x, x_block_size)
        else:
            check.require(x_block_size is None, "x_block_size", x_block_size, "be None for a tensor without scales")
            check.tensor(x, "x", rank=2, dtypes=(torch.bfloat16, torch.float32))
        check.unit_stride(x, "x")
        self.x = x.contiguous() if x.shape[0] > 1 and x.stride(0) == 0 else x   # NPUs do not read one row many times
        self.tokens, columns = x.shape
        self.hidden = columns * 2 if x.dtype == torch.int8 else columns
        check.require(self.hidden > 0, "x", tuple(x.shape), "have at least one column")
        check.multiple_of(self.hidden, "hidden", 64)
        whole = num_per_channels == self.hidden
        check.require(num_per_channels in GROUPS or whole, "num_per_channels", repr(num_per_channels),
                      f"be 16, 32, 64, 128 or hidden ({self.hidden})")
        check.require(self.x_sf is None or not whole or self.hidden <= LONGEST_RECAST, "num_per_channels",
                      num_per_channels, f"be at most {LONGEST_RECAST} for quantised x")
        if packed:
            check.require(column_major and rounded, "use_packed_ue8m0", True,
                          "go with use_tma_aligned_col_major_sf=True and round_sf=True")
        kind = PACKED if packed else COLUMN if column_major else ROW
        self.layout = ScaleLayout(kind, 1, num_per_channels)

    def _take_quantised(self, pair: tuple[torch.Tensor, torch.Tensor], block: tuple[int, int] | None) -> torch.Tensor:
        check.require(len(pair) == 2, "x", f"a tuple of {len(pair)}", "be a tensor or a pair (values, scales)")
        values, scales = pair
        check.tensor(values, "x values", rank=2, dtypes=(torch.float8_e4m3fn, torch.int8))
        check.require(isinstance(block, tuple) and len(block) == 2, "x_block_size", block,
                      "be (rows, columns) for quantised x")
        assert block is not None
        rows, columns = block
        hidden = values.shape[1] * (2 if values.dtype == torch.int8 else 1)
        check.require(_is_power_of_two(rows), "x_block_size", block, "have a power of two of rows")
        check.require(columns == hidden or (_is_power_of_two(columns) and columns >= GROUPS[0]), "x_block_size", block,
                      f"have a power of two of columns, {GROUPS[0]} or more, or {hidden} (the whole row)")
        check.same_device(x_values=values, x_scales=scales)
        self.source_layout = scale_layout.layout_of(scales, block, "x scales")
        self.x_sf = scales
        return values

    def _params(self, group: bool = True) -> dict[str, Any]:
        return {"hidden": self.hidden, "row_stride": _row_stride(self.x), **({"group": self.group} if group else {}),
                "source": str(self.x.dtype).removeprefix("torch.")}

    def _allocate(self) -> torch.Tensor:
        columns = self.hidden // 2 if self.fmt == "e2m1" else self.hidden
        return torch.empty((self.tokens, columns), dtype=OUT_DTYPE[self.fmt], device=self.x.device)

    def quantise(self, values: bool) -> QuantTensor:
        out = self._allocate()
        storage = self.layout.allocate(self.tokens, self.hidden, self.x.device)
        if self.tokens:
            shared = {"fmt": self.fmt, "scales": self.layout.kind, "rounded": self.rounded, "values": values}
            if self.source_layout is None and self.group == self.hidden > LONGEST_TILE:
                launch(per_token_cast_long_row_kernel, self.x, out, storage, **self._params(group=False), **shared)
            elif self.source_layout is None:
                launch(per_token_cast_kernel, self.x, out, storage, **self._params(), **shared)
            else:
                assert self.x_sf is not None
                source = self.source_layout
                kept = source.storage_of(self.x_sf, "x scales", self.tokens, self.hidden)
                # a kernel that holds two columns to an item writes items of two codes
                items = out.view(torch.int16) if self.x.dtype == torch.int8 and self.fmt == "e4m3" else out
                launch(per_token_recast_kernel, self.x, kept, items, storage, **self._params(), **shared,
                       source_rows=source.rows, source_columns=_power_of_two_from(source.columns),
                       source_scales=source.kind)
        return out, self.layout.user_view(storage, self.tokens, self.hidden)

    def with_scales(self, sf: torch.Tensor) -> torch.Tensor:
        check.require(self.x_sf is None, "x", "a pair", "be a float tensor where scales are given")
        check.tensor(sf, "sf", rank=2, dtypes=(self.layout.dtype,))
        check.same_device(x=self.x, sf=sf)
        storage = self.layout.storage_of(sf, "sf", self.tokens, self.hidden)
        out = self._allocate()
        if self.tokens:
            launch(per_token_cast_with_precomputed_sf_kernel, self.x, storage, out, **self._params(), fmt=self.fmt,
                   scales=self.layout.kind)
        return out


def _row_stride(x: torch.Tensor) -> int:
    """The distance between rows; of one row or none it does not matter."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _power_of_two_from(value: int) -> int:
    """The smallest power of two that is not below a number: a block that covers the row covers it still."""
    return 1 << (value - 1).bit_length()
