"""Mixture of experts: routing, and moving tokens to their experts."""

from monotile.moe.expand_to_fused import expand_to_fused, expand_to_fused_with_sf
from monotile.moe.normalize_weight import normalize_weight
from monotile.moe.topk_gate import topk_gate

__all__ = ["expand_to_fused", "expand_to_fused_with_sf", "normalize_weight", "topk_gate"]
