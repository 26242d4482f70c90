"""Oracle of quant.cast_back in plain PyTorch, float32 throughout."""

from __future__ import annotations

import torch

from monotile.reference.quant.per_token_cast import dequantised

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def cast_back(x: tuple[torch.Tensor, torch.Tensor], fmt: str, x_block_size: tuple[int, int]) -> torch.Tensor:
    """Every value times its scale, rounded to the output type."""
    values, scale = dequantised(x, x_block_size)
    return (values * scale).to(DTYPES[fmt])


def per_token_cast_back(x: tuple[torch.Tensor, torch.Tensor], fmt: str, num_per_channels: int) -> torch.Tensor:
    """Scales of one token."""
    return cast_back(x, fmt, (1, num_per_channels))
