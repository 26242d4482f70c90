"""Run a kernel on tensors: select, build once, check the arguments, call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import TargetMismatch
from monotile.targets import shipped, sizes
from monotile.targets.backend import Runner, Source, backend
from monotile.targets.build import Artifact, compile_artifact, lower
from monotile.targets.kernel import Kernel
from monotile.targets.select import resolve
from monotile.targets.spec import Target
from monotile.targets.spec import target as find_target

if TYPE_CHECKING:
    import torch

# Symbols are 32-bit integers in every backend; offsets made from them are 64 bits wide.
_SYMBOL_LIMIT = 2**31
_KNOWN_LAYOUTS = 512


class Loaded:
    """An artifact that can be called on tensors."""

    def __init__(self, artifact: Artifact, run: Runner) -> None:
        self.artifact, self._run = artifact, run
        source = artifact.source
        self._grid = sizes.evaluator(source.grid, [s.name for s in source.scalars])
        self._check = _checker(artifact.op, source)
        self._layouts: dict[Any, bool] = {}   # layouts that fit the signature -> is there anything to do

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        layout = tuple([(t.dtype, t.shape, t.stride(), t.device) for t in tensors])
        work = self._layouts.get(layout)
        if work is None:
            work = all(self._grid(*self._check(tensors)))
            if len(self._layouts) >= _KNOWN_LAYOUTS:
                self._layouts.clear()
            self._layouts[layout] = work
        if work:   # a grid of zero blocks is an error on GPUs and ends the process on NPUs
            self._run(tensors)


@dataclass
class _Ahead:
    target: Target
    backend: str
    compiled: bool
    artifacts: dict[Any, Artifact] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A kernel and its parameters, as an op asked for them."""

    kernel: Kernel
    params: dict[str, Any]


_ahead: ContextVar[_Ahead | None] = ContextVar("monotile_ahead_of_time", default=None)
_asked: ContextVar[list[Asked] | None] = ContextVar("monotile_asked", default=None)
_observed: ContextVar[list[Artifact] | None] = ContextVar("monotile_observed", default=None)
_loaded: dict[Any, Loaded] = {}
_locks: dict[Any, threading.Lock] = {}
_guard = threading.Lock()


def launch(kernel: Kernel, *tensors: torch.Tensor, **params: Any) -> None:
    """Run ``kernel`` with these parameters on these tensors, in the order of its PrimFunc.

    The target is chosen by :func:`monotile.targets.select.resolve`; the first call with these parameters builds the
    kernel. Nothing runs where the grid is empty. Raises ValueError where a tensor does not fit the kernel's
    signature, and what selecting, lowering and compiling raise.
    """
    ahead = _ahead.get()
    if ahead is not None:
        _prepare_ahead(ahead, kernel, tensors, params)
        return
    asked = _asked.get()
    if asked is not None:
        asked.append(Asked(kernel, params))
        return
    ready = prepare(kernel, *tensors, **params)
    observed = _observed.get()
    if observed is not None:
        observed.append(ready.artifact)
    ready(tensors)


@contextmanager
def asked() -> Iterator[list[Asked]]:
    """Inside, ops check their arguments and launch nothing: gives the list of what they ask for."""
    found: list[Asked] = []
    token = _asked.set(found)
    try:
        yield found
    finally:
        _asked.reset(token)


@contextmanager
def observed() -> Iterator[list[Artifact]]:
    """Gives the list of what is launched inside, one entry a launch."""
    found: list[Artifact] = []
    token = _observed.set(found)
    try:
        yield found
    finally:
        _observed.reset(token)


@contextmanager
def ahead_of_time(target: Target | str, backend_name: str | None = None, *,
                  compiled: bool = True) -> Iterator[Callable[[], tuple[Artifact, ...]]]:
    """Inside, ops build their kernels for a target, whose device need not be here, and run nothing.

    Arguments are checked as for a launch, on tensors of any device; results are allocated and never written. Gives a
    function that returns the artifacts so far. Fills the compile cache before a job needs it; with ``compiled=False``
    only lowers.
    """
    chip = find_target(target) if isinstance(target, str) else target
    ahead = _Ahead(chip, backend_name or chip.default_backend, compiled)
    token = _ahead.set(ahead)
    try:
        yield lambda: tuple(ahead.artifacts.values())
    finally:
        _ahead.reset(token)


def _prepare_ahead(ahead: _Ahead, kernel: Kernel, tensors: Sequence[torch.Tensor], params: dict[str, Any]) -> None:
    tile = kernel.tile_for(ahead.target, params)
    key = (kernel, tuple(params.items()), tile)
    artifact = ahead.artifacts.get(key)
    if artifact is None:
        artifact = lower(kernel, params, ahead.target, ahead.backend, tile)
        ahead.artifacts[key] = artifact = compile_artifact(artifact) if ahead.compiled else artifact
    Loaded(artifact, lambda _: None)(tensors)


def prepare(kernel: Kernel, *tensors: torch.Tensor, **params: Any) -> Loaded:
    """The kernel built and loaded for these tensors' device; later calls with equal parameters find it again.

    Safe in threads: one builds, the others wait for it.
    """
    selection = resolve(*tensors)
    tile = kernel.tile_for(selection.target, params)
    key = (kernel, tuple(params.items()), tile, selection.target.name, selection.backend, selection.executor)
    found = _loaded.get(key)
    if found is not None:
        return found
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        found = _loaded.get(key)
        if found is None:
            way = backend(selection.backend)
            artifact = shipped.find(kernel, params, tile, selection) or compile_artifact(
                lower(kernel, params, selection.target, selection.backend, tile))
            assert artifact.directory is not None
            run = way.load(artifact.source, artifact.target, artifact.directory, selection.executor, kernel.op)
            found = _loaded[key] = Loaded(artifact, run)
    return found


def loaded() -> tuple[Artifact, ...]:
    """The artifacts that this process has launched so far."""
    return tuple(each.artifact for each in list(_loaded.values()))


def _checker(op: str, source: Source) -> Callable[[Sequence[torch.Tensor]], tuple[int, ...]]:
    """A function that checks tensors against a signature and returns the values of its symbols."""
    names = [s.name for s in source.scalars]
    places = [(s, source.tensors[s.tensor_index].name) for s in source.scalars]
    shapes = [sizes.evaluator(p.shape, names) for p in source.tensors]
    strides = [sizes.evaluator(p.strides, names) for p in source.tensors]

    def check(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        if len(tensors) != len(source.tensors):
            raise ValueError(f"{op} takes {len(source.tensors)} tensors, got {len(tensors)}")
        device = tensors[0].device
        for param, tensor in zip(source.tensors, tensors, strict=True):
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype != param.dtype:
                raise ValueError(f"{op}: {param.name} must be {param.dtype}, got {dtype}")
            if tensor.dim() != len(param.shape):
                raise ValueError(f"{op}: {param.name} must have {len(param.shape)} dimensions, got shape "
                                 f"{tuple(tensor.shape)}")
            if tensor.device != device:
                raise TargetMismatch(f"{op}: tensors of one call must be on one device: {source.tensors[0].name} is "
                                     f"on {device} and {param.name} on {tensor.device}")
        values = tuple(s.value_from(tensors) for s in source.scalars)
        for (scalar, owner), value in zip(places, values, strict=True):
            if value >= _SYMBOL_LIMIT:
                raise ValueError(f"{op}: {scalar.kind} {scalar.axis} of {owner} is {value}, and must be below "
                                 f"{_SYMBOL_LIMIT}")
        for param, tensor, shape, stride in zip(source.tensors, tensors, shapes, strides, strict=True):
            _compare("size", param.name, tensor.shape, shape(*values), param.shape)
            if tensor.numel() > 0:
                _compare("stride", param.name, tensor.stride(), stride(*values), param.strides, tensor.shape)
        return values

    def _compare(what: str, name: str, got: Sequence[int], want: Sequence[int], written: Sequence[int | str],
                 shape: Sequence[int] = ()) -> None:
        for axis, (have, wanted) in enumerate(zip(got, want, strict=True)):
            if have == wanted or (shape and shape[axis] == 1):   # a stride over one row is never used
                continue
            of = written[axis]
            owner = "" if isinstance(of, int) else f" ({of}, as in {_owners(of)})"
            raise ValueError(f"{op}: {what} {axis} of {name} must be {wanted}{owner}, got {have}")

    def _owners(of: str) -> str:
        words = of.replace("(", " ").replace(")", " ").split()
        return ", ".join(f"{s.kind} {s.axis} of {owner}" for s, owner in places if s.name in words)

    return check
