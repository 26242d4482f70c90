"""Sinkhorn normalisation that autograd, checkpointing and torch.compile understand.

Formula, shapes and edge rules: :mod:`monotile.mhc.sinkhorn`. The backward pass needs only x, so it works alone, twice,
and under checkpointing. Gradients of gradients are not defined and raise.

Replaces ``tile_kernels.modeling.mhc.ops.sinkhorn_normalize`` of TileKernels 1.0.0.
"""

from typing import Any

import torch

from monotile.mhc.sinkhorn import check_matrices, mhc_sinkhorn_bwd, mhc_sinkhorn_fwd


@torch.library.custom_op("monotile::sinkhorn_normalize", mutates_args=())
def _forward(x: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
    return mhc_sinkhorn_fwd(x, repeat, eps)


@torch.library.custom_op("monotile::sinkhorn_normalize_backward", mutates_args=())
def _backward(grad: torch.Tensor, x: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
    return mhc_sinkhorn_bwd(grad, x, repeat, eps)


@_forward.register_fake
def _forward_shape(x: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


@_backward.register_fake
def _backward_shape(grad: torch.Tensor, x: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[torch.Tensor, int, float], output: torch.Tensor) -> None:
    x, ctx.repeat, ctx.eps = inputs
    ctx.save_for_backward(x)


def _differentiate(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    (x,) = ctx.saved_tensors
    return _backward(grad.contiguous(), x, ctx.repeat, ctx.eps), None, None


_forward.register_autograd(_differentiate, setup_context=_save)


def sinkhorn_normalize(x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    """Make matrices nearly doubly stochastic: softmax rows, then columns, then rows and columns ``repeat - 1`` times.

    Args:
        x: (..., m, m) float32 of any strides; m is 1 to 8.
        repeat: how often columns are normalised, at least 1.
        eps: added to the softmax and to every sum, not negative.

    Returns:
        A contiguous tensor of x's shape, differentiable once with respect to x.

    Raises ValueError for another dtype or shape, and for repeat or eps out of range.
    """
    if isinstance(x, torch.Tensor):
        x = x.contiguous()
    check_matrices(x, "x", repeat, eps)
    normalised: torch.Tensor = _forward(x, repeat, float(eps))
    return normalised
