"""Mixture of experts: routing, and moving tokens to their experts."""

from monotile.moe.normalize_weight import normalize_weight
from monotile.moe.topk_gate import topk_gate

__all__ = ["normalize_weight", "topk_gate"]
