"""Normalise top-k routing weights so that each token's weights sum to one.

    denominator[t]   = ((1e-20 + w[t, 0]) + w[t, 1]) + ...     float32, k ascending: the order is part of the result
    normalized[t, k] = w[t, k] / denominator[t]

Shapes: w (T, K) float32, contiguous, 1 <= K <= 32 -> denominator (T,), normalized (T, K), both float32. T may be 0.
A row of zeros gives denominator 1e-20 and weights 0; NaN and inf stay in their row.

Replaces ``tile_kernels.moe.normalize_weight`` of TileKernels 1.0.0.
"""

from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

EPSILON = 1e-20   # part of the definition: an all-zero row stays finite
MAX_TOP_K = 32


def _live_bytes(tile: Tiling, top_k: int) -> int:
    return 4 * tile.tokens * (top_k + 1)


@kernel("moe.normalize_weight", tiling=Tiling(tokens=128, threads=128), live_bytes=_live_bytes)
def normalize_weight_kernel(top_k: int, *, tile: Tiling) -> Any:
    """Tokens lie innermost on chip, so that a step of the sum is one operation over all of them."""
    num_tokens = T.dynamic("num_tokens")
    tokens = tile.tokens

    @T.prim_func
    def normalize_weight(
        weights: T.Tensor[(num_tokens, top_k), T.float32],
        denominator: T.Tensor[(num_tokens,), T.float32],
        normalized: T.Tensor[(num_tokens, top_k), T.float32],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), threads=tile.threads) as block:
            w = T.alloc_shared((top_k, tokens), T.float32)
            total = T.alloc_fragment((tokens,), T.float32)
            for t, k in T.Parallel(tokens, top_k):
                w[k, t] = weights[block * tokens + t, k]
            T.fill(total, EPSILON)
            for k in T.serial(top_k):
                for t in T.Parallel(tokens):
                    total[t] = total[t] + w[k, t]
            T.copy(total, denominator[block * tokens])
            for k, t in T.Parallel(top_k, tokens):
                w[k, t] = w[k, t] / total[t]
            for t, k in T.Parallel(tokens, top_k):
                normalized[block * tokens + t, k] = w[k, t]

    return normalize_weight


def normalize_weight(topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide each token's routing weights by their sum.

    Args:
        topk_weights: (num_tokens, num_topk) float32, contiguous, num_topk in 1..32.

    Returns:
        ``(denominator, normalized)``: (num_tokens,) and (num_tokens, num_topk), float32.

    Raises ValueError for another rank, dtype, layout or num_topk.
    """
    check.tensor(topk_weights, "topk_weights", rank=2, dtypes=[torch.float32], contiguous=True)
    tokens, top_k = topk_weights.shape
    check.require(1 <= top_k <= MAX_TOP_K, "topk_weights", f"{top_k} columns", f"have 1 to {MAX_TOP_K} columns")
    denominator, normalized = topk_weights.new_empty(tokens), torch.empty_like(topk_weights)
    if tokens:
        launch(normalize_weight_kernel, topk_weights, denominator, normalized, top_k=top_k)
    return denominator, normalized
