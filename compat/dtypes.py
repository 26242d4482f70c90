"""torch dtypes as NumPy sees their bytes: formats that NumPy lacks become unsigned integers of their width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def numpy_view(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array (no copy); bfloat16 as uint16, float8 and bool as uint8. CPU tensors only."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(np.uint16))
    if tensor.dtype == torch.bool or (tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point):
        return np.asarray(tensor.view(torch.uint8).numpy())
    return np.asarray(tensor.numpy())
