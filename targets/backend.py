"""What a backend is: a way from a PrimFunc to text, to a compiled kernel, to a call on tensors.

A backend is found by name and imported when first used. Adding one: implement `Backend`, add its line to `_MODULES`,
and name it in a target's ``backends``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from monotile.compat.errors import UnsupportedOnTarget
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

_MODULES = {
    "cuda": ("monotile.targets.cuda.backend", "CudaBackend"),
    "npuir": ("monotile.targets.npuir.backend", "NpuirBackend"),
}


@dataclass(frozen=True)
class TensorParam:
    """A tensor argument. Sizes and strides are numbers, or the names of the kernel's dynamic symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]


@dataclass(frozen=True)
class ScalarParam:
    """A dynamic symbol, and the tensor that its value is read from."""

    name: str
    tensor_index: int
    kind: Literal["shape", "stride"]
    axis: int

    def value_from(self, tensors: Sequence[torch.Tensor]) -> int:
        tensor = tensors[self.tensor_index]
        return int(tensor.shape[self.axis] if self.kind == "shape" else tensor.stride(self.axis))


@dataclass(frozen=True)
class Source:
    """A lowered kernel: its text, and how it is called. ``func`` is the PrimFunc that the text was made from."""

    text: str
    suffix: str
    name: str
    tensors: tuple[TensorParam, ...]
    scalars: tuple[ScalarParam, ...]
    func: Any = field(default=None, compare=False, repr=False)


Runner = Callable[[Sequence["torch.Tensor"]], None]


class Backend(Protocol):
    """A way to lower. ``op`` is the kernel's name, for messages."""

    name: str
    compiles_before_load: bool   # False: `load` needs no files of `compile`

    def lower(self, func: Any, target: Target, op: str) -> Source: ...

    def flags(self, target: Target) -> tuple[str, ...]:
        """What else than the text decides the result; part of the cache's key."""
        ...

    def tool_versions(self) -> tuple[str, ...]: ...

    def compile(self, source: Source, target: Target, directory: Path, op: str) -> None:
        """Write the compiled kernel's files into ``directory``."""
        ...

    def load(self, source: Source, target: Target, directory: Path, executor: str, op: str) -> Runner: ...


@functools.cache
def backend(name: str) -> Backend:
    """The backend of a name. Raises UnsupportedOnTarget for one that is not built."""
    if name not in _MODULES:
        raise UnsupportedOnTarget(f"backend {name!r} is not built yet; these are: {', '.join(_MODULES)}")
    module, attribute = _MODULES[name]
    made: Backend = getattr(importlib.import_module(module), attribute)()
    return made


def signature(func: Any) -> tuple[tuple[TensorParam, ...], tuple[ScalarParam, ...]]:
    """The tensors of a PrimFunc in order, and its dynamic symbols in order of first use (sizes before strides)."""
    tensors: list[TensorParam] = []
    scalars: list[ScalarParam] = []
    seen: list[Any] = []
    for position, parameter in enumerate(func.params):
        buffer = func.buffer_map[parameter]
        shape = [_extent(e) for e in buffer.shape]
        strides = [_extent(e) for e in buffer.strides] or _row_major(shape)
        for kind, extents in (("shape", buffer.shape), ("stride", buffer.strides)):
            for axis, extent in enumerate(extents):
                if type(extent).__name__ == "Var" and not any(extent.same_as(s) for s in seen):
                    seen.append(extent)
                    scalars.append(ScalarParam(str(extent.name), position, kind, axis))  # type: ignore[arg-type]
        tensors.append(TensorParam(str(buffer.name), str(buffer.dtype), tuple(shape), tuple(strides)))
    return tuple(tensors), tuple(scalars)


def _extent(expr: Any) -> int | str:
    name = type(expr).__name__
    if name == "IntImm":
        return int(expr.value)
    return str(expr.name) if name == "Var" else str(expr)


def _row_major(shape: Sequence[int | str]) -> list[int | str]:
    strides: list[int | str] = [1]
    for extent in reversed(shape[1:]):
        below = strides[0]
        known = isinstance(extent, int) and isinstance(below, int)
        strides.insert(0, extent * below if known else f"{below} * {extent}")  # type: ignore[operator]
    return strides[: len(shape)]
