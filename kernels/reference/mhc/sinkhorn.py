"""Oracle of Sinkhorn normalisation, in the dtype of x; the gradient by autograd."""

import torch


def sinkhorn_normalize(x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    """(..., m, m) -> the same: softmax rows, then columns, then rows and columns ``repeat - 1`` times."""
    y = torch.softmax(x, dim=-1) + eps
    y = y / (y.sum(dim=-2, keepdim=True) + eps)
    for _ in range(repeat - 1):
        y = y / (y.sum(dim=-1, keepdim=True) + eps)
        y = y / (y.sum(dim=-2, keepdim=True) + eps)
    return y


def sinkhorn_normalize_backward(grad: torch.Tensor, x: torch.Tensor, repeat: int = 10,
                                eps: float = 1e-6) -> torch.Tensor:
    """The gradient with respect to x."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (grad_x,) = torch.autograd.grad(sinkhorn_normalize(leaf, repeat, eps), leaf, grad)
    return grad_x
