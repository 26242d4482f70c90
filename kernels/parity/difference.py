"""Two tensors under a bound: how many elements miss it, which, and how far the worst is off in ulp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from monotile.compat import dtypes
from monotile.parity.tolerances import Bound

SHOWN = 8
_FLOATS = (torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Miss:
    """One element outside of the bound."""

    at: tuple[int, ...]
    got: str
    want: str


@dataclass(frozen=True)
class Difference:
    """What a comparison found. ``worst_ulp``: None for tensors that are no floats; NaN and infinities do not count."""

    elements: int
    missed: int
    worst_ulp: int | None
    first: tuple[Miss, ...]
    reason: str = ""   # shapes or dtypes differ

    @property
    def holds(self) -> bool:
        return not self.missed and not self.reason


def difference(got: torch.Tensor, want: torch.Tensor, bound: Bound, defined: torch.Tensor | None = None) -> Difference:
    """Compare CPU tensors element by element; what is not ``defined`` (a mask that broadcasts) is left out."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return Difference(want.numel(), want.numel(), None, (),
                          f"{got.dtype} {tuple(got.shape)} in place of {want.dtype} {tuple(want.shape)}")
    counted = torch.ones(want.shape, dtype=torch.bool)
    if defined is not None:
        counted &= defined
    same = torch.from_numpy(_bits(got) == _bits(want)).reshape(want.shape)
    missed = ~same & counted
    if not bound.bits and got.dtype in _FLOATS:
        a, b = got.double(), want.double()
        close = b.isfinite() & ((a - b).abs() <= bound.absolute + bound.relative * b.abs())
        missed &= ~(close | (a == b) | (a.isnan() & b.isnan()))
    places = missed.nonzero()
    first = tuple(Miss(tuple(at), _shown(got, at), _shown(want, at)) for at in places[:SHOWN].tolist())
    return Difference(int(counted.sum()), len(places), _worst(got, want, counted), first)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    array = dtypes.numpy_view(tensor.contiguous())
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "f" else array


def _shown(tensor: torch.Tensor, at: list[int]) -> str:
    value: Any = tensor[tuple(at)]
    if tensor.dtype in _FLOATS:
        number = float(value)
        bits = int(_bits(value.reshape(1))[0])
        return f"{number:.9g} ({bits:#0{2 * tensor.element_size() + 2}x})"
    return str(value.item())


def _worst(got: torch.Tensor, want: torch.Tensor, counted: torch.Tensor) -> int | None:
    if got.dtype not in _FLOATS:
        return None
    finite = counted & got.float().isfinite() & want.float().isfinite()
    if not bool(finite.any()):
        return 0
    a, b = (_ordered(tensor)[finite.numpy()] for tensor in (got, want))
    return int(np.abs(a - b).max())


def _ordered(tensor: torch.Tensor) -> np.ndarray:
    """Neighbouring numbers as neighbouring integers, both zeros as 0."""
    bits = _bits(tensor).astype(np.int64).reshape(tensor.shape)
    sign = 1 << (8 * tensor.element_size() - 1)
    return np.where(bits & sign, sign - bits, bits)
