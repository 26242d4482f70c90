"""Oracle of moe.expand_to_fused: an indexed assignment a choice. Rows that nothing names are zero here."""

import torch


def expand_to_fused(x: torch.Tensor, token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor) -> torch.Tensor:
    """x (T, H) of any dtype -> (N, H)."""
    result = x.new_empty((pos_to_expert.shape[0], x.shape[1]))
    item, out = x.view(torch.uint8), result.view(torch.uint8)   # some dtypes cannot be indexed
    out.zero_()
    for positions in token_topk_to_pos.unbind(1):
        named = positions >= 0
        out[positions[named].long()] = item[named]
    out[pos_to_expert < 0] = 0
    return result


def expand_to_fused_with_sf(
    x: tuple[torch.Tensor, torch.Tensor], token_topk_to_pos: torch.Tensor, pos_to_expert: torch.Tensor,
    use_tma_aligned_col_major_sf: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(data, sf) -> (out, out_sf), the scales row-major or column-major with columns of a multiple of four."""
    out, rows = (expand_to_fused(part, token_topk_to_pos, pos_to_expert) for part in x)
    if not use_tma_aligned_col_major_sf:
        return out, rows
    expanded, columns = rows.shape
    out_sf = rows.new_zeros((columns, (expanded + 3) // 4 * 4))[:, :expanded].T
    out_sf.copy_(rows)
    return out, out_sf
