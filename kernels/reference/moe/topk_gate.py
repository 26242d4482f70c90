"""Oracle of moe.topk_gate: two stable sorts, by score and then numbers before NaN."""

import torch


def topk_gate(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """(T, E) float32 -> (T, num_topk) int64; ties to the smaller index, NaN below every number."""
    nan = scores.isnan()
    ranked = torch.where(nan, 0.0, scores).sort(dim=1, descending=True, stable=True).indices
    numbers_first = nan.gather(1, ranked).to(torch.uint8).sort(dim=1, stable=True).indices
    return ranked.gather(1, numbers_first)[:, :num_topk]
