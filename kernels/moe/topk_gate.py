"""The k largest scores of each token, in order.

    for each rank: the largest score not taken yet; of equal scores the one with the smaller expert index

Shapes: scores (T, E) float32, contiguous, 1 <= k <= E -> indices (T, k) int64, largest score first. T may be 0.
NaN, whatever its sign, ranks below every number, -inf included; -0.0 equals 0.0. The indices of a row are always
distinct and in range: a row of equal scores gives 0, 1, 2, ..., and so does a row of -inf or of NaN.

Replaces ``tile_kernels.moe.topk_gate`` of TileKernels 1.0.0, which repeats an index where fewer than k scores are
above -inf, and does not say what becomes of NaN.
"""

from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

# Scores are ranked as int32 keys in the order of the numbers: a float's bits, those of a negative number inverted
# below the sign. Keys of numbers run from that of -inf (0x807FFFFF) to that of inf.
MAGNITUDE = 0x7FFFFFFF
MINUS_ZERO = -1                     # key of -0.0; nothing else has it
NOT_A_NUMBER = -0x7F800002          # one below the key of -inf
TAKEN = -0x80000000                 # below NaN
LANES = 32


def _live_bytes(tile: Tiling, num_experts: int, top_k: int) -> int:
    # scores as they arrive and by expert, keys, places, candidates; two masks of a bit an expert
    return tile.tokens * (4 * 5 * _padded(num_experts, tile) + _padded(num_experts, tile) // 4 + 4 * (4 * top_k + 2))


def _padded(num_experts: int, tile: Tiling) -> int:
    """Whole blocks of an NPU, and as many experts for each thread of a GPU."""
    lanes = max(LANES, tile.threads // tile.tokens)
    return -(-num_experts // lanes) * lanes


@kernel("moe.topk_gate", tiling=Tiling(tokens=16, threads=128), live_bytes=_live_bytes)
def topk_gate_kernel(num_experts: int, top_k: int, *, tile: Tiling) -> Any:
    """Experts outermost, tokens innermost: reductions go down the columns and broadcasts along the rows."""
    num_tokens = T.dynamic("num_tokens")
    tokens, experts = tile.tokens, _padded(num_experts, tile)

    @T.prim_func
    def topk_gate(
        scores: T.Tensor[(num_tokens, num_experts), T.float32],
        indices: T.Tensor[(num_tokens, top_k), T.int64],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), threads=tile.threads) as block:
            score = T.alloc_fragment((experts, tokens), T.float32)
            key = T.alloc_fragment((experts, tokens), T.int32)
            place = T.alloc_fragment((experts, tokens), T.int32)
            candidate = T.alloc_fragment((experts, tokens), T.int32)
            best = T.alloc_fragment((tokens,), T.int32)
            chosen = T.alloc_fragment((tokens,), T.int32)
            ranked = T.alloc_shared((top_k, tokens), T.int32)
            result = T.alloc_fragment((tokens, top_k), T.int32)
            for e, t in T.Parallel(experts, tokens):
                score[e, t] = scores[block * tokens + t, e]
            for e, t in T.Parallel(experts, tokens):
                place[e, t] = experts - e   # larger is earlier; never 0
            for e, t in T.Parallel(experts, tokens):
                key[e, t] = T.reinterpret(score[e, t], T.int32) ^ (
                    (T.reinterpret(score[e, t], T.int32) >> 31) & MAGNITUDE)
                key[e, t] = T.if_then_else(key[e, t] == MINUS_ZERO, 0, key[e, t])
                key[e, t] = T.if_then_else(T.isnan(score[e, t]), NOT_A_NUMBER, key[e, t])
            if experts > num_experts:
                for e, t in T.Parallel(experts, tokens):
                    key[e, t] = T.if_then_else(place[e, t] > experts - num_experts, key[e, t], TAKEN)
            for k in T.serial(top_k):
                T.reduce_max(key, best, dim=0)
                for e, t in T.Parallel(experts, tokens):
                    candidate[e, t] = T.if_then_else(key[e, t] == best[t], place[e, t], 0)
                T.reduce_max(candidate, chosen, dim=0)
                for e, t in T.Parallel(experts, tokens):
                    key[e, t] = T.if_then_else(candidate[e, t] == chosen[t], TAKEN, key[e, t])
                for t in T.Parallel(tokens):
                    ranked[k, t] = experts - chosen[t]
            for t, k in T.Parallel(tokens, top_k):
                result[t, k] = ranked[k, t]
            T.copy(result, indices[block * tokens, 0])

    return topk_gate


def topk_gate(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Choose each token's ``num_topk`` experts with the largest scores.

    Args:
        scores: (num_tokens, num_experts) float32, contiguous.
        num_topk: 1 to num_experts.

    Returns:
        (num_tokens, num_topk) int64, largest score first, ties to the smaller index.

    Raises ValueError for another rank, dtype or layout, and for num_topk out of range.
    """
    check.tensor(scores, "scores", rank=2, dtypes=[torch.float32], contiguous=True)
    tokens, experts = scores.shape
    check.require(isinstance(num_topk, int), "num_topk", repr(num_topk), "be an int")
    check.require(1 <= num_topk <= experts, "num_topk", num_topk, f"be 1 to the number of experts, {experts}")
    indices = torch.empty((tokens, num_topk), dtype=torch.int64, device=scores.device)
    if tokens:
        launch(topk_gate_kernel, scores, indices, num_experts=experts, top_k=num_topk)
    return indices
