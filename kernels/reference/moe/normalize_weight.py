"""Oracle of moe.normalize_weight: one column added after the other, in float32."""

import torch


def normalize_weight(topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, K) float32 -> (denominator (T,), normalized (T, K))."""
    denominator = torch.full_like(topk_weights[:, 0], 1e-20)
    for column in topk_weights.unbind(1):
        denominator = denominator + column
    return denominator, topk_weights / denominator[:, None]
