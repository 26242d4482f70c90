"""Checks of arguments: a ValueError that names the argument, its value and what is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def require(condition: bool, name: str, value: object, need: str) -> None:
    """Raise ``ValueError("name must ..., got value")`` unless the condition holds."""
    if not condition:
        raise ValueError(f"{name} must {need}, got {value}")


def tensor(value: Any, name: str, *, rank: int | None = None, dtypes: Sequence[torch.dtype] | None = None,
           shape: Sequence[int | None] | None = None, contiguous: bool = False) -> None:
    """A tensor of a rank, a dtype, a shape (None: any size) and, where asked, contiguous."""
    require(isinstance(value, torch.Tensor), name, type(value).__name__, "be a torch.Tensor")
    if rank is not None:
        require(value.dim() == rank, name, f"shape {tuple(value.shape)}", f"have {rank} dimensions")
    if dtypes is not None:
        shown = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        require(value.dtype in dtypes, name, str(value.dtype).removeprefix("torch."), f"be {shown}")
    if shape is not None:
        shown = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        fits = len(shape) == value.dim() and all(n is None or n == m for n, m in zip(shape, value.shape))
        require(fits, name, tuple(value.shape), f"have shape {shown}")
    if contiguous:
        require(value.is_contiguous(), name, f"strides {value.stride()}", "be contiguous")


def unit_stride(value: torch.Tensor, name: str) -> None:
    """The last dimension must be contiguous; rows may lie anywhere. The strides of an empty tensor say nothing."""
    require(value.numel() == 0 or value.shape[-1] <= 1 or value.stride(-1) == 1, name, f"strides {value.stride()}",
            "have stride 1 in its last dimension")


def same_device(**tensors: torch.Tensor | None) -> None:
    """All tensors on one device."""
    devices = {name: value.device for name, value in tensors.items() if value is not None}
    if len(set(devices.values())) > 1:
        shown = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"tensors must be on one device, got {shown}")


def one_of(value: object, name: str, allowed: Sequence[object]) -> None:
    require(value in allowed, name, repr(value), f"be one of {', '.join(map(repr, allowed))}")


def multiple_of(value: int, name: str, divisor: int) -> None:
    require(value % divisor == 0, name, value, f"be a multiple of {divisor}")
