"""Copy each token to its places in the fused expert layout.

    out[token_topk_to_pos[t, k]] = x[t]     for every t and k whose position is not negative
    out[p] = 0                              for every p with pos_to_expert[p] < 0: the padding between experts

``expand_to_fused_with_sf`` does the same to the scale factors of quantised tokens.

Shapes: x (T, H) of any dtype, contiguous; token_topk_to_pos (T, K) int32; pos_to_expert (N,) int32 -> out (N, H).
Scales: x_sf (T, S) float32, or int32 with four packed ue8m0 each -> out_sf (N, S), row-major, or column-major with
strides (1, N rounded up to 4) whose padding is left undefined. Any of T, N, K and H may be 0; without tokens the
padding rows are zeroed all the same. Bits are moved, never converted.

A row that is neither named by a position nor padding is left undefined, as in the peer: get_fused_mapping makes none.
No two positions may be equal.

Replaces ``tile_kernels.moe.expand_to_fused`` and ``expand_to_fused_with_sf`` of TileKernels 1.0.0, which write
nothing where there are no tokens.
"""

from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling
from monotile.transpose.batched_transpose import transpose_into

GROUPS = (32, 128)        # channels that share a scale
SF_ALIGNMENT = 4          # scales: 16 bytes, so that a column can be fetched by a GPU's copy engine
PACKED = 4                # ue8m0 exponents in an int32
INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.int8}   # widest first


def _live_bytes(tile: Tiling, item_bytes: int, columns: int, sf_columns: int, top_k: int) -> int:
    return item_bytes * _width(tile, item_bytes, columns) + 4 * _sf_width(tile, sf_columns)


def _width(tile: Tiling, item_bytes: int, columns: int) -> int:
    """Elements of a row that are moved at once: whole accesses of every thread of a GPU, whole blocks of an NPU."""
    lane = tile.lane_bytes // item_bytes
    return min(-(-columns // lane) * lane, tile.row_bytes // item_bytes)


def _sf_width(tile: Tiling, sf_columns: int) -> int:
    """Rows of scales are short and seldom aligned: one element an access."""
    lane = max(8, tile.lane_bytes // 16)
    return -(-sf_columns // lane) * lane


@kernel("moe.expand_to_fused", tiling=Tiling(row_bytes=16384, lane_bytes=32, rows=32, threads=128),
        live_bytes=_live_bytes)
def expand_to_fused_kernel(item_bytes: int, columns: int, sf_columns: int, top_k: int, *, tile: Tiling) -> Any:
    """The first blocks zero the padding, ``rows`` positions each; the others take one token each.

    ``sf_columns`` is 0 where there are no scales.
    """
    num_tokens, num_expanded = T.dynamic("num_tokens"), T.dynamic("num_expanded")
    dtype = f"int{8 * item_bytes}"
    rows = tile.rows
    width, sf_width = _width(tile, item_bytes, columns), _sf_width(tile, sf_columns)
    parts, sf_parts = -(-columns // width), 1

    @T.macro
    def zero_padding(block: Any, pos_to_expert: Any, out: Any, row: Any, width: Any, parts: Any) -> None:
        T.clear(row)
        for r in T.serial(rows):
            if block * rows + r < num_expanded:
                if pos_to_expert[block * rows + r] < 0:
                    for part in T.serial(parts):
                        T.copy(row, out[block * rows + r, part * width])

    @T.macro
    def scatter(token: Any, token_topk_to_pos: Any, x: Any, out: Any, row: Any, width: Any, parts: Any) -> None:
        for part in T.serial(parts):
            T.copy(x[token, part * width], row)
            for k in T.serial(top_k):
                position = token_topk_to_pos[token, k]
                if position >= 0:
                    T.copy(row, out[position, part * width])

    @T.prim_func
    def expand_to_fused(
        x: T.Tensor[(num_tokens, columns), dtype],
        token_topk_to_pos: T.Tensor[(num_tokens, top_k), T.int32],
        pos_to_expert: T.Tensor[(num_expanded,), T.int32],
        out: T.Tensor[(num_expanded, columns), dtype],
    ):
        with T.Kernel(T.ceildiv(num_expanded, rows) + num_tokens, threads=tile.threads) as block:
            row = T.alloc_fragment((width,), dtype)
            if block < T.ceildiv(num_expanded, rows):
                zero_padding(block, pos_to_expert, out, row, width, parts)
            else:
                scatter(block - T.ceildiv(num_expanded, rows), token_topk_to_pos, x, out, row, width, parts)

    @T.prim_func
    def expand_to_fused_with_sf(
        x: T.Tensor[(num_tokens, columns), dtype],
        x_sf: T.Tensor[(num_tokens, sf_columns), T.int32],
        token_topk_to_pos: T.Tensor[(num_tokens, top_k), T.int32],
        pos_to_expert: T.Tensor[(num_expanded,), T.int32],
        out: T.Tensor[(num_expanded, columns), dtype],
        out_sf: T.Tensor[(num_expanded, sf_columns), T.int32],
    ):
        with T.Kernel(T.ceildiv(num_expanded, rows) + num_tokens, threads=tile.threads) as block:
            row = T.alloc_fragment((width,), dtype)
            sf_row = T.alloc_fragment((sf_width,), T.int32)
            if block < T.ceildiv(num_expanded, rows):
                zero_padding(block, pos_to_expert, out_sf, sf_row, sf_width, sf_parts)
                zero_padding(block, pos_to_expert, out, row, width, parts)
            else:
                scatter(block - T.ceildiv(num_expanded, rows), token_topk_to_pos, x_sf, out_sf, sf_row, sf_width,
                        sf_parts)
                scatter(block - T.ceildiv(num_expanded, rows), token_topk_to_pos, x, out, row, width, parts)

    return expand_to_fused_with_sf if sf_columns else expand_to_fused


def expand_to_fused(x: torch.Tensor, token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor) -> torch.Tensor:
    """Copy each token's activations to the positions of its experts; zero the padding between experts.

    Args:
        x: (num_tokens, hidden) of any dtype, contiguous.
        token_topk_to_pos: (num_tokens, num_topk) int32, contiguous; negative where a choice is masked.
        pos_to_expert: (num_expanded_tokens,) int32, contiguous; negative for padding.

    Returns:
        (num_expanded_tokens, hidden), of x's dtype.

    Raises ValueError for another rank, dtype, layout or device, and for sizes that disagree.
    """
    _check_maps(x, token_topk_to_pos, pos_to_expert)
    check.same_device(x=x, token_topk_to_pos=token_topk_to_pos, pos_to_expert=pos_to_expert)
    out = x.new_empty((pos_to_expert.shape[0], x.shape[1]))
    _expand(x, None, token_topk_to_pos, pos_to_expert, out, None)
    return out


def expand_to_fused_with_sf(
    x: tuple[torch.Tensor, torch.Tensor], num_per_channels: int, token_topk_to_pos: torch.Tensor,
    pos_to_expert: torch.Tensor, use_tma_aligned_col_major_sf: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`expand_to_fused`, for quantised activations and their scale factors.

    Args:
        x: (data, sf). data: (num_tokens, hidden) of any dtype; sf: (num_tokens, S) float32 with one scale for every
            ``num_per_channels`` channels, or int32 with four packed ue8m0. Both contiguous. A byte of int8 data may
            hold two channels (fp4).
        num_per_channels: 32 or 128.
        token_topk_to_pos: (num_tokens, num_topk) int32, contiguous; negative where a choice is masked.
        pos_to_expert: (num_expanded_tokens,) int32, contiguous; negative for padding.
        use_tma_aligned_col_major_sf: give the scales column-major with columns aligned to 16 bytes; packed scales
            need it.

    Returns:
        (out, out_sf): (num_expanded_tokens, hidden) and (num_expanded_tokens, S), of the inputs' dtypes.

    Raises ValueError for another rank, dtype, layout, device or ``num_per_channels``, and for sizes that disagree.
    """
    check.require(isinstance(x, (tuple, list)) and len(x) == 2, "x", type(x).__name__, "be a pair (data, sf)")
    data, sf = x
    _check_maps(data, token_topk_to_pos, pos_to_expert, name="x[0]")
    check.one_of(num_per_channels, "num_per_channels", GROUPS)
    check.tensor(sf, "x[1]", rank=2, dtypes=[torch.float32, torch.int32], contiguous=True)
    packed = sf.dtype == torch.int32
    check.require(use_tma_aligned_col_major_sf or not packed, "use_tma_aligned_col_major_sf",
                  use_tma_aligned_col_major_sf, "be True for packed scales (x[1] of int32)")
    widths = [_sf_columns(data.shape[1], num_per_channels, packed)]
    if data.dtype == torch.int8:
        widths.append(_sf_columns(2 * data.shape[1], num_per_channels, packed))
    check.require(sf.shape[0] == data.shape[0] and sf.shape[1] in widths, "x[1]", f"shape {tuple(sf.shape)}",
                  f"have shape ({data.shape[0]}, {' or '.join(map(str, widths))})")
    check.same_device(data=data, sf=sf, token_topk_to_pos=token_topk_to_pos, pos_to_expert=pos_to_expert)
    expanded, columns = pos_to_expert.shape[0], sf.shape[1]
    out, rows = data.new_empty((expanded, data.shape[1])), sf.new_empty((expanded, columns))
    _expand(data, sf, token_topk_to_pos, pos_to_expert, out, rows)
    if not use_tma_aligned_col_major_sf:
        return out, rows
    aligned = -(-expanded // SF_ALIGNMENT) * SF_ALIGNMENT
    out_sf = sf.new_empty((columns, aligned))[:, :expanded]
    # scattered one by one into columns, scales would cost a memory transaction each
    transpose_into(rows.unsqueeze(0), out_sf.unsqueeze(0))
    return out, out_sf.T


def _sf_columns(channels: int, num_per_channels: int, packed: bool) -> int:
    groups = -(-channels // num_per_channels)
    return -(-groups // PACKED) if packed else groups


def _check_maps(x: torch.Tensor, token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor, name: str = "x") -> None:
    check.tensor(x, name, rank=2, contiguous=True)
    check.tensor(token_topk_to_pos, "token_topk_to_pos", rank=2, dtypes=[torch.int32], contiguous=True,
                 shape=(x.shape[0], None))
    check.tensor(pos_to_expert, "pos_to_expert", rank=1, dtypes=[torch.int32], contiguous=True)


def _expand(x: torch.Tensor, sf: torch.Tensor | None, token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor,
            out: torch.Tensor, out_sf: torch.Tensor | None) -> None:
    if sf is not None and out_sf is not None and sf.shape[1] == 0:
        sf = out_sf = None
    if out.numel() == 0:   # no positions or no channels, and then no scales
        return
    if x.shape[0] == 0 or token_topk_to_pos.shape[1] == 0:   # nothing to copy; there may be padding
        x, token_topk_to_pos = x[:0], token_topk_to_pos.new_empty((0, 1))
        sf = sf[:0] if sf is not None else None
    plain = _widest_integer(x, out)
    params = {"item_bytes": plain.itemsize, "columns": x.shape[1] * x.element_size() // plain.itemsize,
              "top_k": token_topk_to_pos.shape[1]}
    if sf is None or out_sf is None:
        launch(expand_to_fused_kernel, x.view(plain), token_topk_to_pos, pos_to_expert, out.view(plain),
               sf_columns=0, **params)
    else:
        launch(expand_to_fused_kernel, x.view(plain), sf.view(torch.int32), token_topk_to_pos, pos_to_expert,
               out.view(plain), out_sf.view(torch.int32), sf_columns=sf.shape[1], **params)


def _widest_integer(x: torch.Tensor, out: torch.Tensor) -> torch.dtype:
    """The widest integer type that rows and their places in memory are whole multiples of."""
    row_bytes = x.shape[1] * x.element_size()
    return next(dtype for size, dtype in INTEGERS.items()
                if row_bytes % size == 0 and not any(t.storage_offset() * t.element_size() % size for t in (x, out)))
