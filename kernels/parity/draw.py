"""Inputs from a counter: numpy's Philox, read as raw words.

Raw words are fixed by the generator's definition, unlike NumPy's distributions, which may change between versions.
Everything else is exact arithmetic on them, so that every machine makes the same bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

Shape = Sequence[int]


class Draw:
    """One stream of inputs. Two streams differ where the op, its arguments or the seed differ."""

    def __init__(self, op: str, arguments: Mapping[str, Any], seed: int) -> None:
        text = json.dumps([op, dict(arguments)], sort_keys=True)
        key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        self._words = np.random.Philox(key=np.array([key, seed], np.uint64))

    def words(self, shape: Shape) -> np.ndarray:
        """uint64, all bits random."""
        count = int(np.prod(shape, dtype=np.int64))
        return self._words.random_raw(count).reshape(tuple(shape)) if count else np.empty(tuple(shape), np.uint64)

    def bits(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Any bits of the dtype: NaN, infinities and subnormals among them."""
        if dtype == torch.bool:
            return self.integers(0, 2, shape).bool()
        size = torch.empty((), dtype=dtype).element_size()
        low = np.ascontiguousarray(self.words(shape)).view(np.uint8).reshape(*shape, 8)[..., :size]
        return torch.from_numpy(np.ascontiguousarray(low)).view(dtype).reshape(tuple(shape))

    def integers(self, low: int, high: int, shape: Shape) -> torch.Tensor:
        """int64 in [low, high)."""
        return torch.from_numpy((self.words(shape) % np.uint64(high - low)).astype(np.int64) + low)

    def uniform(self, shape: Shape) -> torch.Tensor:
        """float32 in [0, 1), multiples of 2**-24."""
        return torch.from_numpy((self.words(shape) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))

    def bell(self, shape: Shape) -> torch.Tensor:
        """float32 of mean 0 and standard deviation 1, within 3.5: four uniform numbers added, exact but for the last
        rounding."""
        total = sum((self.words(shape) >> np.uint64(40)).astype(np.float64) for _ in range(4))
        return torch.from_numpy(((np.asarray(total) * 2.0**-24 - 2.0) * 1.75).astype(np.float32))

    def powers(self, low: int, high: int, shape: Shape) -> torch.Tensor:
        """float32, powers of two with exponents in [low, high), none subnormal: written as bits, not by pow."""
        if low < -126 or high > 128:
            raise ValueError(f"exponents must be in [-126, 128), got [{low}, {high})")
        return ((self.integers(low, high, shape) + 127) << 23).int().view(torch.float32)

    def order(self, count: int) -> torch.Tensor:
        """int64: 0 to count - 1, shuffled."""
        return torch.from_numpy(np.argsort(self.words((count,)), kind="stable"))

    def happens(self, one_in: int, shape: Shape) -> torch.Tensor:
        """bool, true once in ``one_in``."""
        return self.integers(0, one_in, shape) == 0
