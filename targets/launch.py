"""Run a kernel on tensors: select, build once, check the arguments, call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monotile.targets.backend import Runner, Source, backend
from monotile.targets.build import Artifact, compile_artifact, lower
from monotile.targets.kernel import Kernel
from monotile.targets.select import resolve

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Loaded:
    """An artifact that can be called."""

    artifact: Artifact
    run: Runner


_loaded: dict[Any, Loaded] = {}
_loading = threading.Lock()


def launch(kernel: Kernel, *tensors: torch.Tensor, **params: Any) -> None:
    """Run ``kernel`` with these parameters on these tensors, in the order of its PrimFunc.

    The target is chosen by :func:`monotile.targets.select.resolve`. Raises ValueError where a tensor does not fit the
    kernel's signature.
    """
    ready = prepare(kernel, *tensors, **params)
    _check_arguments(kernel.op, ready.artifact.source, tensors)
    ready.run(tensors)


def prepare(kernel: Kernel, *tensors: torch.Tensor, **params: Any) -> Loaded:
    """The kernel built and loaded for these tensors' device; later calls with equal parameters find it again."""
    selection = resolve(*tensors)
    tile = kernel.tile_for(selection.target, params)
    key = (kernel.op, tuple(params.items()), selection.target.name, selection.backend, selection.executor, tile)
    found = _loaded.get(key)
    if found is not None:
        return found
    with _loading:
        found = _loaded.get(key)
        if found is None:
            way = backend(selection.backend)
            artifact = lower(kernel, params, selection.target, selection.backend, tile)
            if way.compiles_before_load:
                artifact = compile_artifact(artifact)
            run = way.load(artifact.source, artifact.target, artifact.directory or Path(), selection.executor,
                           kernel.op)
            found = _loaded[key] = Loaded(artifact, run)
    return found


def _check_arguments(op: str, source: Source, tensors: Sequence[torch.Tensor]) -> None:
    """dtype, rank, fixed sizes and strides, and one value a dynamic symbol."""
    if len(tensors) != len(source.tensors):
        raise ValueError(f"{op} takes {len(source.tensors)} tensors, got {len(tensors)}")
    values: dict[str, tuple[int, str]] = {}
    for param, tensor in zip(source.tensors, tensors, strict=True):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != param.dtype:
            raise ValueError(f"{op}: {param.name} must be {param.dtype}, got {dtype}")
        if tensor.dim() != len(param.shape):
            raise ValueError(f"{op}: {param.name} must have {len(param.shape)} dimensions, got {tuple(tensor.shape)}")
        for what, have, want in (("size", tensor.shape, param.shape), ("stride", tensor.stride(), param.strides)):
            for axis, (got, wanted) in enumerate(zip(have, want, strict=True)):
                if isinstance(wanted, int):
                    # a stride over one row or none is never used
                    if got != wanted and not (what == "stride" and tensor.shape[axis] <= 1):
                        raise ValueError(f"{op}: {what} {axis} of {param.name} must be {wanted}, got {got}")
                elif wanted.isidentifier():
                    known = values.setdefault(wanted, (got, param.name))
                    if known[0] != got:
                        raise ValueError(f"{op}: {wanted} is {known[0]} in {known[1]} and {got} in {param.name}")
