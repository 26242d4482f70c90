"""What the emulators of both Ascend backends share: the mode asked for, and tensors as flat memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

MODES = ("fast", "checked")


def emulator_mode() -> str:
    """``fast``, or ``checked`` where MONOTILE_EMULATOR says so. Bounds are checked in both."""
    mode = os.environ.get("MONOTILE_EMULATOR", "fast")
    if mode not in MODES:
        raise ValueError(f"MONOTILE_EMULATOR must be one of {', '.join(MODES)}, got {mode!r}")
    return mode


def flat_memory(tensor: torch.Tensor) -> np.ndarray:
    """All elements from a tensor's first to its last, as one NumPy array over the same memory (no copy)."""
    import torch

    from monotile.compat import dtypes

    extent = 0 if tensor.numel() == 0 else 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return dtypes.numpy_view(torch.as_strided(tensor.detach(), (extent,), (1,)))
