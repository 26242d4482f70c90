"""Sinkhorn normalisation of small square matrices, forward and backward.

    y = softmax(x, dim=-1) + eps                            over the rows
    y = y / (sum(y, dim=-2) + eps)                          columns
    (repeat - 1) times:
        y = y / (sum(y, dim=-1) + eps)                      rows
        y = y / (sum(y, dim=-2) + eps)                      columns

so ``repeat=1`` normalises columns once and rows never beyond the softmax, and columns always come last.

Backward, for a step y = a / s with s = sum(a) + eps over the rows or columns:  grad_a = (grad_y - sum(grad_y * y)) / s;
then the softmax p:  grad_x = p * (grad_p - sum(grad_p * p)). It starts from x alone: the forward pass is run again on
chip, keeps every s, and each a is made from the y that follows it, a = y * s.

Every step multiplies by reciprocals, one a row or column: m divisions for m * m.

Shapes: x, grad (..., m, m) float32, contiguous -> the same. m is 1 to 8 (4 in DeepSeek's models); repeat at least 1.
Everything is float32; the order of a sum is not part of the result. No matrices give an empty result. NaN stays in
its matrix.

Replaces ``tile_kernels.mhc.sinkhorn_kernel`` of TileKernels 1.0.0.
"""

from typing import Any

import torch

from monotile import check
from monotile.compat import language as T
from monotile.targets.kernel import kernel
from monotile.targets.launch import launch
from monotile.targets.tiling import Tiling

MAX_MULT = 8    # a tile holds whole matrices, and a GPU's thread several of them in registers


def _forward_bytes(tile: Tiling, mult: int, repeat: int, eps: float) -> int:
    # as it arrives, turned, and as it leaves; a step's operands
    return 4 * tile.tokens * (5 * mult * mult + 2 * mult)


@kernel("mhc.mhc_sinkhorn_fwd", tiling=Tiling(tokens=128), live_bytes=_forward_bytes)
def sinkhorn_forward_kernel(mult: int, repeat: int, eps: float, *, tile: Tiling) -> Any:
    """Tokens lie innermost: a step is a few operations over all of them, and on a GPU a thread has one token."""
    num_tokens = T.dynamic("num_tokens")
    tokens = tile.tokens

    @T.prim_func
    def mhc_sinkhorn_fwd(
        x: T.Tensor[(num_tokens, mult * mult), T.float32],
        out: T.Tensor[(num_tokens, mult * mult), T.float32],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), threads=tokens) as block:
            matrix = T.alloc_fragment((mult * mult, tokens), T.float32)
            y = T.reshape(matrix, (mult, mult, tokens))
            rows = T.alloc_fragment((mult, tokens), T.float32)
            columns = T.alloc_fragment((mult, tokens), T.float32)
            for c, t in T.Parallel(mult * mult, tokens):
                matrix[c, t] = x[block * tokens + t, c]
            T.reduce_max(y, rows, dim=1)
            for i, j, t in T.Parallel(mult, mult, tokens):
                y[i, j, t] = T.exp(y[i, j, t] - rows[i, t])
            T.reduce_sum(y, rows, dim=1)
            for i, j, t in T.Parallel(mult, mult, tokens):
                y[i, j, t] = y[i, j, t] / rows[i, t] + eps
            T.reduce_sum(y, columns, dim=0)
            for j, t in T.Parallel(mult, tokens):
                columns[j, t] = 1.0 / (columns[j, t] + eps)
            for i, j, t in T.Parallel(mult, mult, tokens):
                y[i, j, t] = y[i, j, t] * columns[j, t]
            for _ in T.serial(repeat - 1):
                T.reduce_sum(y, rows, dim=1)
                for i, t in T.Parallel(mult, tokens):
                    rows[i, t] = 1.0 / (rows[i, t] + eps)
                for i, j, t in T.Parallel(mult, mult, tokens):
                    y[i, j, t] = y[i, j, t] * rows[i, t]
                T.reduce_sum(y, columns, dim=0)
                for j, t in T.Parallel(mult, tokens):
                    columns[j, t] = 1.0 / (columns[j, t] + eps)
                for i, j, t in T.Parallel(mult, mult, tokens):
                    y[i, j, t] = y[i, j, t] * columns[j, t]
            for c, t in T.Parallel(mult * mult, tokens):
                out[block * tokens + t, c] = matrix[c, t]

    return mhc_sinkhorn_fwd


def _backward_bytes(tile: Tiling, mult: int, repeat: int, eps: float) -> int:
    # as in the forward pass, twice; and every divisor
    return 4 * tile.tokens * (11 * mult * mult + (2 * repeat + 3) * mult)


@kernel("mhc.mhc_sinkhorn_bwd", tiling=Tiling(tokens=128), live_bytes=_backward_bytes)
def sinkhorn_backward_kernel(mult: int, repeat: int, eps: float, *, tile: Tiling) -> Any:
    """``divisors`` keeps those of the rows of turn r at 2 r (turn 0 has none) and of its columns at 2 r + 1."""
    num_tokens = T.dynamic("num_tokens")
    tokens = tile.tokens

    @T.prim_func
    def mhc_sinkhorn_bwd(
        grad: T.Tensor[(num_tokens, mult * mult), T.float32],
        x: T.Tensor[(num_tokens, mult * mult), T.float32],
        grad_x: T.Tensor[(num_tokens, mult * mult), T.float32],
    ):
        with T.Kernel(T.ceildiv(num_tokens, tokens), threads=tokens) as block:
            matrix = T.alloc_fragment((mult * mult, tokens), T.float32)
            gradient = T.alloc_fragment((mult * mult, tokens), T.float32)
            y = T.reshape(matrix, (mult, mult, tokens))
            g = T.reshape(gradient, (mult, mult, tokens))
            p = T.alloc_fragment((mult, mult, tokens), T.float32)
            product = T.alloc_fragment((mult, mult, tokens), T.float32)
            divisor = T.alloc_fragment((mult, tokens), T.float32)
            inverse = T.alloc_fragment((mult, tokens), T.float32)
            dot = T.alloc_fragment((mult, tokens), T.float32)
            divisors = T.alloc_shared((2 * repeat, mult, tokens), T.float32)

            for c, t in T.Parallel(mult * mult, tokens):
                matrix[c, t] = x[block * tokens + t, c]
            T.reduce_max(y, divisor, dim=1)
            for i, j, t in T.Parallel(mult, mult, tokens):
                y[i, j, t] = T.exp(y[i, j, t] - divisor[i, t])
            T.reduce_sum(y, divisor, dim=1)
            for i, j, t in T.Parallel(mult, mult, tokens):
                p[i, j, t] = y[i, j, t] / divisor[i, t]
            for i, j, t in T.Parallel(mult, mult, tokens):
                y[i, j, t] = p[i, j, t] + eps
            for turn in T.serial(repeat):
                if turn > 0:
                    T.reduce_sum(y, divisor, dim=1)
                    for i, t in T.Parallel(mult, tokens):
                        divisor[i, t] = divisor[i, t] + eps
                    for i, t in T.Parallel(mult, tokens):
                        divisors[2 * turn, i, t] = divisor[i, t]
                    for i, t in T.Parallel(mult, tokens):
                        inverse[i, t] = 1.0 / divisor[i, t]
                    for i, j, t in T.Parallel(mult, mult, tokens):
                        y[i, j, t] = y[i, j, t] * inverse[i, t]
                T.reduce_sum(y, divisor, dim=0)
                for j, t in T.Parallel(mult, tokens):
                    divisor[j, t] = divisor[j, t] + eps
                for j, t in T.Parallel(mult, tokens):
                    divisors[2 * turn + 1, j, t] = divisor[j, t]
                for j, t in T.Parallel(mult, tokens):
                    inverse[j, t] = 1.0 / divisor[j, t]
                for i, j, t in T.Parallel(mult, mult, tokens):
                    y[i, j, t] = y[i, j, t] * inverse[j, t]

            for c, t in T.Parallel(mult * mult, tokens):
                gradient[c, t] = grad[block * tokens + t, c]
            for back in T.serial(repeat):
                for j, t in T.Parallel(mult, tokens):
                    divisor[j, t] = divisors[2 * (repeat - 1 - back) + 1, j, t]
                for i, j, t in T.Parallel(mult, mult, tokens):
                    product[i, j, t] = g[i, j, t] * y[i, j, t]
                T.reduce_sum(product, dot, dim=0)
                for j, t in T.Parallel(mult, tokens):
                    inverse[j, t] = 1.0 / divisor[j, t]
                for i, j, t in T.Parallel(mult, mult, tokens):
                    g[i, j, t] = (g[i, j, t] - dot[j, t]) * inverse[j, t]
                if back < repeat - 1:
                    for i, j, t in T.Parallel(mult, mult, tokens):
                        y[i, j, t] = y[i, j, t] * divisor[j, t]
                    for i, t in T.Parallel(mult, tokens):
                        divisor[i, t] = divisors[2 * (repeat - 1 - back), i, t]
                    for i, j, t in T.Parallel(mult, mult, tokens):
                        product[i, j, t] = g[i, j, t] * y[i, j, t]
                    T.reduce_sum(product, dot, dim=1)
                    for i, t in T.Parallel(mult, tokens):
                        inverse[i, t] = 1.0 / divisor[i, t]
                    for i, j, t in T.Parallel(mult, mult, tokens):
                        g[i, j, t] = (g[i, j, t] - dot[i, t]) * inverse[i, t]
                    for i, j, t in T.Parallel(mult, mult, tokens):
                        y[i, j, t] = y[i, j, t] * divisor[i, t]

            for i, j, t in T.Parallel(mult, mult, tokens):
                product[i, j, t] = g[i, j, t] * p[i, j, t]
            T.reduce_sum(product, dot, dim=1)
            for i, j, t in T.Parallel(mult, mult, tokens):
                g[i, j, t] = (g[i, j, t] - dot[i, t]) * p[i, j, t]
            for c, t in T.Parallel(mult * mult, tokens):
                grad_x[block * tokens + t, c] = gradient[c, t]

    return mhc_sinkhorn_bwd


def mhc_sinkhorn_fwd(x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    """Sinkhorn normalisation: rows by softmax, then columns, then rows and columns ``repeat - 1`` times.

    Args:
        x: (..., m, m) float32, contiguous; m is 1 to 8.
        repeat: how often columns are normalised, at least 1.
        eps: added to the softmax and to every sum, not negative.

    Returns:
        A tensor of x's shape.

    Raises ValueError for another dtype, layout or shape, and for repeat or eps out of range.
    """
    mult = check_matrices(x, "x", repeat, eps)
    out = torch.empty_like(x)
    if x.numel():
        launch(sinkhorn_forward_kernel, x.view(-1, mult * mult), out.view(-1, mult * mult), mult=mult,
               repeat=int(repeat), eps=float(eps))
    return out


def mhc_sinkhorn_bwd(grad: torch.Tensor, x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    """The gradient of :func:`mhc_sinkhorn_fwd` with respect to x.

    Args:
        grad: (..., m, m) float32, contiguous: the gradient with respect to the output.
        x: the input of the forward pass, of grad's shape, contiguous.
        repeat, eps: as in the forward pass.

    Returns:
        A tensor of x's shape.

    Raises ValueError for another dtype, layout or shape, and for repeat or eps out of range.
    """
    mult = check_matrices(x, "x", repeat, eps)
    check.tensor(grad, "grad", dtypes=[torch.float32], shape=tuple(x.shape), contiguous=True)
    check.same_device(grad=grad, x=x)
    grad_x = torch.empty_like(x)
    if x.numel():
        launch(sinkhorn_backward_kernel, grad.view(-1, mult * mult), x.view(-1, mult * mult),
               grad_x.view(-1, mult * mult), mult=mult, repeat=int(repeat), eps=float(eps))
    return grad_x


def check_matrices(x: torch.Tensor, name: str, repeat: int, eps: float) -> int:
    """m of (..., m, m). Raises ValueError."""
    check.tensor(x, name, dtypes=[torch.float32], contiguous=True)
    shape = tuple(x.shape)
    check.require(len(shape) >= 2 and shape[-1] == shape[-2], name, f"shape {shape}", "have shape (..., m, m)")
    check.require(1 <= shape[-1] <= MAX_MULT, name, f"shape {shape}",
                  f"have matrices of 1 to {MAX_MULT} rows (mhc_mult)")
    check.require(isinstance(repeat, int) and repeat >= 1, "repeat", repeat, "be a whole number of at least 1")
    check.require(0.0 <= eps < float("inf"), "eps", eps, "be a number of at least 0")
    return int(shape[-1])
