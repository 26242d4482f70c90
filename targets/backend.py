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
from monotile.targets.sizes import evaluator, expression
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

_MODULES = {
    "cuda": ("monotile.targets.cuda.backend", "CudaBackend"),
    "ascendc": ("monotile.targets.ascendc.backend", "AscendcBackend"),
    "npuir": ("monotile.targets.npuir.backend", "NpuirBackend"),
}


@dataclass(frozen=True)
class TensorParam:
    """A tensor argument. Sizes and strides are numbers, or expressions of the kernel's dynamic symbols."""

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
    """A lowered kernel: its text, and how it is called. ``func`` is the PrimFunc that the text was made from.

    The text alone must say what is to be compiled and how it is launched: the cache's key is made from it.
    """

    text: str
    suffix: str
    name: str
    tensors: tuple[TensorParam, ...]
    scalars: tuple[ScalarParam, ...]
    func: Any = field(default=None, compare=False, repr=False)
    grid: tuple[str, ...] = ()   # its extents, of the dynamic symbols


Runner = Callable[[Sequence["torch.Tensor"]], None]


class Backend(Protocol):
    """A way to lower. ``op`` is the kernel's name, for messages."""

    name: str

    def lower(self, func: Any, target: Target, op: str) -> Source: ...

    def flags(self, target: Target) -> tuple[str, ...]:
        """What else than the text decides the result; part of the cache's key."""
        ...

    def tool_versions(self) -> tuple[str, ...]: ...

    def compile(self, source: Source, target: Target, directory: Path, op: str) -> None:
        """Write the compiled kernel's files into ``directory``."""
        ...

    def accepted(self, directory: Path) -> str | None:
        """Which compiler of the vendor's took the kernel whose files these are, or None."""
        ...

    def explain(self, source: Source) -> dict[str, Any]:
        """What is known of a lowered kernel without compiling it, for people to read."""
        ...

    def load(self, source: Source, target: Target, directory: Path, executor: str, op: str) -> Runner:
        """What runs the kernel from the files of ``directory``, on arguments that have been checked already."""
        ...


@functools.cache
def backend(name: str) -> Backend:
    """The backend of a name. Raises UnsupportedOnTarget for one that is not built."""
    if name not in _MODULES:
        raise UnsupportedOnTarget(f"backend {name!r} is not built yet; these are: {', '.join(_MODULES)}")
    module, attribute = _MODULES[name]
    made: Backend = getattr(importlib.import_module(module), attribute)()
    return made


def signature(func: Any) -> tuple[tuple[TensorParam, ...], tuple[ScalarParam, ...]]:
    """The tensors of a PrimFunc in order, and its dynamic symbols in order of first use.

    Parameters are gone through in order, the sizes of each before its strides. Raises ValueError for a parameter that
    is no tensor, for two symbols of one name, and for a symbol that no size or stride is by itself.
    """
    tensors: list[TensorParam] = []
    scalars: list[ScalarParam] = []
    seen: list[Any] = []
    for position, parameter in enumerate(func.params):
        if parameter not in func.buffer_map:
            raise ValueError(f"parameter {parameter} is no tensor: numbers are parameters of the builder, or sizes")
        buffer = func.buffer_map[parameter]
        shape = tuple(map(_extent, buffer.shape))
        tensors.append(TensorParam(str(buffer.name), str(buffer.dtype), shape,
                                   tuple(map(_extent, buffer.strides)) or _row_major(shape)))
        for kind, extents in (("shape", buffer.shape), ("stride", buffer.strides)):
            for axis, extent in enumerate(extents):
                if type(extent).__name__ == "Var" and not any(extent.same_as(s) for s in seen):
                    seen.append(extent)
                    scalars.append(ScalarParam(str(extent.name), position, kind, axis))  # type: ignore[arg-type]
    names = [s.name for s in scalars]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"there are two symbols {name!r}: make T.dynamic({name!r}) once and use it in each tensor")
    for tensor in tensors:
        try:
            evaluator([*tensor.shape, *tensor.strides], names)
        except ValueError as error:
            raise ValueError(f"a size or stride of {tensor.name} has a symbol that no tensor gives alone: {error}") \
                from error
    return tuple(tensors), tuple(scalars)


def _extent(extent: Any) -> int | str:
    written = expression(extent)
    return int(written) if written.isdecimal() else written


def _row_major(shape: Sequence[int | str]) -> tuple[int | str, ...]:
    strides: list[int | str] = [1]
    for extent in reversed(shape[1:]):
        below = strides[0]
        known = isinstance(extent, int) and isinstance(below, int)
        strides.insert(0, extent * below if known else f"({below} * {extent})")  # type: ignore[operator]
    return tuple(strides[: len(shape)])
