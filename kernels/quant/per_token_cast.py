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
from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.compat import lowbit
from monotile.quant import scale_layout
from monotile.quant.scale_layout import COLUMN, PACKED, ROW, ScaleLayout, ceil_div
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

QuantTensor = tuple[torch.Tensor, torch.Tensor]

LARGEST = {"e4m3": lowbit.E4M3_MAX, "e2m1": lowbit.E2M1_MAX}
SMALLEST_AMAX = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}   # keeps the scale a normal number
OUT_DTYPE = {"e4m3": torch.float8_e4m3fn, "e2m1": torch.int8}
GROUPS = (16, 32, 64, 128)


# ---------------------------------------------------------------------- what the sources share
def tile_width(hidden: int, group: int, tile: Tiling) -> int:
    """Columns of a tile: a power of two of groups up to ``tile.width``, or the whole row where that is one group."""
    if group == hidden:
        return ceil_div(hidden, 2 * tile.threads) * 2 * tile.threads   # a pair of columns for each thread
    width = group
    while width < hidden and width < tile.width:
        width *= 2
    return width


def scale_and_inverse(amax: Any, fmt: str, rounded: bool) -> tuple[Any, Any, Any]:
    """(scale, its exponent byte, inverse) of a group's largest magnitude, as expressions."""
    clamped = T.max(amax, T.float32(SMALLEST_AMAX[fmt]))
    scale = clamped / T.float32(LARGEST[fmt])
    if not rounded:
        return scale, None, T.float32(LARGEST[fmt]) / clamped
    exponent = lowbit.power_of_two_above(scale)
    return lowbit.power_of_two(exponent), exponent, lowbit.power_of_two(T.max(254 - exponent, 0))


def magnitude(x: Any) -> Any:
    """|x|, and 0 for NaN: a maximum over these ignores NaN on every unit."""
    return T.if_then_else(T.isnan(x), T.float32(0), T.abs(x))


def store_values(fmt: str, groups: int, group: int) -> Any:
    """A macro that writes ``x * factor`` of a tile to ``out``; ``factor`` has one value a group of ``group``."""
    @T.macro
    def e4m3(x, factor, out, first, column):  # type: ignore[no-untyped-def]
        tokens, width = x.shape
        code = T.alloc_fragment((tokens, width), T.float8_e4m3fn)
        x_groups = T.reshape(x, (tokens, groups, group))
        code_groups = T.reshape(code, (tokens, groups, group))
        for t, g, c in T.Parallel(tokens, groups, group):
            code_groups[t, g, c] = lowbit.e4m3_from_f32(x_groups[t, g, c] * factor[t, g])
        T.copy(code, out[first, column])

    @T.macro
    def e2m1(x, factor, out, first, column):  # type: ignore[no-untyped-def]
        tokens, width = x.shape
        codes = T.alloc_shared((tokens, width), T.int16)   # neighbours meet in shared memory
        pairs = T.alloc_fragment((tokens, width // 2), T.int8)
        x_groups = T.reshape(x, (tokens, groups, group))
        code_groups = T.reshape(codes, (tokens, groups, group))
        for t, g, c in T.Parallel(tokens, groups, group):
            code_groups[t, g, c] = T.cast(lowbit.e2m1_from_f32(x_groups[t, g, c] * factor[t, g]), "int16")
        for t, c in T.Parallel(tokens, width // 2):
            pairs[t, c] = lowbit.pack_pair(codes[t, 2 * c], codes[t, 2 * c + 1])
        T.copy(pairs, out[first, column // 2])

    return e4m3 if fmt == "e4m3" else e2m1


def store_scales(kind: str, groups: int) -> Any:
    """A macro that writes a tile of scales (``packed``: of exponent bytes) to a storage; padding stays untouched."""
    words = ceil_div(groups, scale_layout.PACK)

    @T.macro
    def row(scale, out_sf, first, group, num_tokens):  # type: ignore[no-untyped-def]
        T.copy(scale, out_sf[first, group])

    @T.macro
    def column(scale, out_sf, first, group, num_tokens):  # type: ignore[no-untyped-def]
        tokens = scale.shape[0]
        for g, t in T.Parallel(groups, tokens):
            if first + t < num_tokens:
                out_sf[group + g, first + t] = scale[t, g]

    @T.macro
    def packed(exponent, out_sf, first, group, num_tokens):  # type: ignore[no-untyped-def]
        tokens = exponent.shape[0]
        for w, t in T.Parallel(words, tokens):
            if first + t < num_tokens:
                out_sf[group // scale_layout.PACK + w, first + t] = word_of(exponent, t, w, groups)

    return {ROW: row, COLUMN: column, PACKED: packed}[kind]


def word_of(exponent: Any, t: Any, w: Any, groups: int) -> Any:
    """Four exponent bytes of a token as one int32, the first lowest."""
    word = exponent[t, scale_layout.PACK * w]
    for byte in range(1, min(groups, scale_layout.PACK)):
        word = T.bitwise_or(word, T.shift_left(exponent[t, scale_layout.PACK * w + byte], 8 * byte))
    return word


def load_scales(kind: str, groups: int) -> Any:
    """A macro that reads a tile of scales from a storage as float32."""
    words = ceil_div(groups, scale_layout.PACK)

    @T.macro
    def row(storage, scale, first, group):  # type: ignore[no-untyped-def]
        T.copy(storage[first, group], scale)

    @T.macro
    def column(storage, scale, first, group):  # type: ignore[no-untyped-def]
        tokens = scale.shape[0]
        for t, g in T.Parallel(tokens, groups):
            scale[t, g] = storage[group + g, first + t]

    @T.macro
    def packed(storage, scale, first, group):  # type: ignore[no-untyped-def]
        tokens = scale.shape[0]
        word = T.alloc_shared((tokens, words), T.int32)
        for t, w in T.Parallel(tokens, words):
            word[t, w] = storage[group // scale_layout.PACK + w, first + t]
        for t, g in T.Parallel(tokens, groups):
            scale[t, g] = lowbit.power_of_two(byte_of(word[t, g // scale_layout.PACK], g % scale_layout.PACK))

    return {ROW: row, COLUMN: column, PACKED: packed}[kind]


def byte_of(word: Any, position: Any) -> Any:
    """The byte at a position that varies (0 .. 3): vector units shift by constants only."""
    chosen = T.bitwise_and(word, 255)
    for byte in range(1, scale_layout.PACK):
        chosen = T.if_then_else(position == byte, T.bitwise_and(T.shift_right(word, 8 * byte), 255), chosen)
    return chosen


def packed_dtype(kind: str) -> Any:
    return T.int32 if kind == PACKED else T.float32


def storage_dims(kind: str, num_tokens: Any, num_groups: int, pitch: Any) -> tuple[Any, Any]:
    """The storage's shape as a kernel declares it."""
    if kind == ROW:
        return num_tokens, num_groups
    return (ceil_div(num_groups, scale_layout.PACK) if kind == PACKED else num_groups), pitch


def _live_bytes(tile: Tiling, hidden: int, group: int, fmt: str, **_: Any) -> int:
    width = tile_width(hidden, group, tile)
    element = 4 + 4 + (1 if fmt == "e4m3" else 0.5)   # the tile, its magnitudes, its codes
    return int(tile.tokens * width * element)


# ---------------------------------------------------------------------- kernels
@kernel("quant.per_token_cast", tiling=Tiling(tokens=4, width=1024, threads=128), live_bytes=_live_bytes)
def per_token_cast_kernel(hidden: int, row_stride: int, group: int, source: str, fmt: str, scales: str, rounded: bool,
                          values: bool, *, tile: Tiling) -> Any:
    """Scales and, with ``values``, codes of a float tensor.

    The row stride is a compile-time number: only then is it known that rows allow wide loads.
    """
    width = tile_width(hidden, group, tile)
    whole = group == hidden
    size = width if whole else group
    groups, num_groups = width // size, 1 if whole else ceil_div(hidden, group)
    num_tokens, pitch = T.dynamic("num_tokens"), T.dynamic("pitch")
    out_dtype, out_columns = (T.float8_e4m3fn, hidden) if fmt == "e4m3" else (T.int8, hidden // 2)
    put_values, put_scales = store_values(fmt, groups, size), store_scales(scales, groups)
    packed = scales == PACKED
    ragged = packed and num_groups % scale_layout.PACK != 0 and groups > 1

    @T.prim_func
    def per_token_cast(
        x: T.StridedTensor[(num_tokens, hidden), (row_stride, 1), source],
        out: T.Tensor[(num_tokens, out_columns), out_dtype],
        out_sf: T.Tensor[storage_dims(scales, num_tokens, num_groups, pitch), packed_dtype(scales)],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tile.tokens), ceil_div(hidden, width), threads=tile.threads) as (by, bx):
            first = by * tile.tokens
            column = bx * width
            x_raw = T.alloc_fragment((tile.tokens, width), source)
            x_tile = T.alloc_fragment((tile.tokens, width), T.float32)
            sizes = T.alloc_fragment((tile.tokens, width), T.float32)
            amax = T.alloc_fragment((tile.tokens, groups), T.float32)
            factor = T.alloc_fragment((tile.tokens, groups), T.float32)
            scale = T.alloc_shared((tile.tokens, groups), packed_dtype(scales)) if packed else T.alloc_fragment(
                (tile.tokens, groups), T.float32)
            T.copy(x[first, column], x_raw)
            T.copy(x_raw, x_tile)
            for t, c in T.Parallel(tile.tokens, width):
                sizes[t, c] = magnitude(x_tile[t, c])
            T.reduce_max(T.reshape(sizes, (tile.tokens, groups, size)), amax, dim=2)
            for t, g in T.Parallel(tile.tokens, groups):
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
