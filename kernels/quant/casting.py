"""What the quantising sources share: scales from magnitudes, tiles of codes, tiles of scales.

Each function that returns a macro closes over compile-time numbers. A tile's columns are ``pieces`` runs of ``run``
columns under one factor. Formats that put two columns into one stored item are handled either from a tile of all
columns, or from a *split* source: a tile of the even columns and one of the odd, which is what unpacking words gives.
"""

# No `from __future__ import annotations` here: TileLang reads a kernel's annotations as objects.
from typing import Any

import torch

from monotile.compat import language as T
from monotile.compat import lowbit
from monotile.quant.scale_layout import COLUMN, PACK, PACKED, ROW, ceil_div

LARGEST = {"e4m3": lowbit.E4M3_MAX, "e2m1": lowbit.E2M1_MAX}
SMALLEST_AMAX = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}   # keeps the scale a normal number
OUT_DTYPE = {"e4m3": torch.float8_e4m3fn, "e2m1": torch.int8}


# ---------------------------------------------------------------------- expressions
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


def even_of_bf16(word: Any) -> Any:
    """The float32 of the lower bfloat16 in an int32."""
    return T.reinterpret(T.shift_left(word, 16), "float32")


def odd_of_bf16(word: Any) -> Any:
    """The float32 of the upper bfloat16 in an int32."""
    return T.reinterpret(T.bitwise_and(word, -65536), "float32")


# ---------------------------------------------------------------------- values
def out_tensor(fmt: str, hidden: int, split: bool) -> tuple[int, Any]:
    """(columns, dtype) that a kernel gives its output: e4m3 from a split source is written as words of two codes."""
    if fmt == "e2m1":
        return hidden // 2, T.int8
    return (hidden // 2, T.int16) if split else (hidden, T.float8_e4m3fn)


def store_values(fmt: str, pieces: int, run: int) -> Any:
    """A macro that writes the codes of ``x * factor`` of a tile to ``out``."""
    @T.macro
    def e4m3(x, factor, out, first, column):  # type: ignore[no-untyped-def]
        tokens, width = x.shape
        code = T.alloc_fragment((tokens, width), T.float8_e4m3fn)
        x_pieces = T.reshape(x, (tokens, pieces, run))
        code_pieces = T.reshape(code, (tokens, pieces, run))
        for t, p, c in T.Parallel(tokens, pieces, run):
            code_pieces[t, p, c] = lowbit.e4m3_from_f32(x_pieces[t, p, c] * factor[t, p])
        T.copy(code, out[first, column])

    @T.macro
    def e2m1(x, factor, out, first, column):  # type: ignore[no-untyped-def]
        tokens, width = x.shape
        codes = T.alloc_shared((tokens, width), T.int16)   # neighbours meet in shared memory
        pairs = T.alloc_fragment((tokens, width // 2), T.int8)
        x_pieces = T.reshape(x, (tokens, pieces, run))
        code_pieces = T.reshape(codes, (tokens, pieces, run))
        for t, p, c in T.Parallel(tokens, pieces, run):
            code_pieces[t, p, c] = T.cast(lowbit.e2m1_from_f32(x_pieces[t, p, c] * factor[t, p]), "int16")
        for t, c in T.Parallel(tokens, width // 2):
            pairs[t, c] = lowbit.pack_pair(codes[t, 2 * c], codes[t, 2 * c + 1])
        T.copy(pairs, out[first, column // 2])

    return e4m3 if fmt == "e4m3" else e2m1


def store_split_values(fmt: str, pieces: int, run: int) -> Any:
    """A macro that writes the codes of a split source; ``run`` counts columns of one of the two tiles."""
    item = T.int16 if fmt == "e4m3" else T.int8

    @T.macro
    def split(even, odd, factor, out, first, column):  # type: ignore[no-untyped-def]
        tokens, half = even.shape
        item_tile = T.alloc_fragment((tokens, half), item)
        even_pieces = T.reshape(even, (tokens, pieces, run))
        odd_pieces = T.reshape(odd, (tokens, pieces, run))
        item_pieces = T.reshape(item_tile, (tokens, pieces, run))
        for t, p, c in T.Parallel(tokens, pieces, run):
            low = even_pieces[t, p, c] * factor[t, p]
            high = odd_pieces[t, p, c] * factor[t, p]
            if fmt == "e4m3":
                item_pieces[t, p, c] = lowbit.e4m3_pair_from_f32(low, high)
            else:
                item_pieces[t, p, c] = lowbit.pack_pair(lowbit.e2m1_from_f32(low), lowbit.e2m1_from_f32(high))
        T.copy(item_tile, out[first, column // 2])

    return split


# ---------------------------------------------------------------------- scales
def scale_dtype(kind: str) -> Any:
    return T.int32 if kind == PACKED else T.float32


def storage_dims(kind: str, rows: Any, num_groups: int, pitch: Any) -> tuple[Any, Any]:
    """The shape of a storage of scales (see scale_layout) as a kernel declares it."""
    if kind == ROW:
        return rows, num_groups
    return (ceil_div(num_groups, PACK) if kind == PACKED else num_groups), pitch


def store_scales(kind: str, groups: int) -> Any:
    """A macro that writes a tile of scales (``packed``: of exponent bytes) to a storage; padding stays untouched."""
    words = ceil_div(groups, PACK)

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
                out_sf[group // PACK + w, first + t] = word_of(exponent, t, w, groups)

    return {ROW: row, COLUMN: column, PACKED: packed}[kind]


def word_of(exponent: Any, t: Any, w: Any, groups: int) -> Any:
    """Four exponent bytes of a token as one int32, the first lowest."""
    word = exponent[t, PACK * w]
    for byte in range(1, min(groups, PACK)):
        word = T.bitwise_or(word, T.shift_left(exponent[t, PACK * w + byte], 8 * byte))
    return word


def load_scales(kind: str, groups: int) -> Any:
    """A macro that reads a tile of scales from a storage as float32."""
    words = ceil_div(groups, PACK)

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
            word[t, w] = storage[group // PACK + w, first + t]
        for t, g in T.Parallel(tokens, groups):
            scale[t, g] = lowbit.power_of_two(byte_of(word[t, g // PACK], g % PACK))

    return {ROW: row, COLUMN: column, PACKED: packed}[kind]


def byte_of(word: Any, position: Any) -> Any:
    """The byte at a position that varies (0 .. 3): vector units shift by constants only."""
    chosen = T.bitwise_and(word, 255)
    for byte in range(1, PACK):
        chosen = T.if_then_else(position == byte, T.bitwise_and(T.shift_right(word, 8 * byte), 255), chosen)
    return chosen
