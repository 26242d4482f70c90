"""Which target, backend and executor a call uses. Decided anew on every call; nothing is probed at import.

The tensors' device comes first: ``cuda`` tensors go to the CUDA target, ``npu`` tensors to the chip they are on, CPU
tensors to the emulator of an Ascend target. What else is asked for must agree with that, or the call raises:

    KERNEL_TARGET     auto | cuda | ascend | ascend-910b | ascend-910c | ascend-950
    KERNEL_BACKEND    auto | one of the target's backends (cuda, npuir, ascendc)
    KERNEL_EXECUTOR   auto | device | emulator

``ascend`` is the Ascend chip of this machine, and ascend-910b where there is none; ``auto`` with CPU tensors is
ascend-910b. Inside ``use_target`` these variables are not read. A thread starts outside of any ``use_target``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import TargetMismatch, ToolchainMissing, UnsupportedOnTarget
from monotile.targets.spec import ASCEND_910B, CUDA_SM90, TARGETS, Target, target_of_device
from monotile.targets.spec import target as find_target

if TYPE_CHECKING:
    import torch

TARGET_NAMES = ("auto", "cuda", "ascend", *(t.name for t in TARGETS.values() if t.is_ascend))
BACKEND_NAMES = ("auto", "cuda", "npuir", "ascendc")
EXECUTOR_NAMES = ("auto", "device", "emulator")


@dataclass(frozen=True)
class Selection:
    """What one call uses. ``executor`` is ``device`` or ``emulator``."""

    target: Target
    backend: str
    executor: str


@dataclass(frozen=True)
class _Request:
    """What was asked for, and in which words, so that a refusal can quote them."""

    target: str
    backend: str
    executor: str
    in_context: bool

    def said(self, field: str) -> str:
        value = getattr(self, field)
        return f"use_target({field}={value!r})" if self.in_context else f"KERNEL_{field.upper()}={value}"


_context: ContextVar[_Request | None] = ContextVar("monotile_use_target", default=None)


@contextmanager
def use_target(target: str, backend: str | None = None, executor: str | None = None) -> Iterator[None]:
    """Use this target (and backend, and executor) for every call made inside, instead of the environment's.

    ``target``: one of :data:`TARGET_NAMES`. ``backend`` and ``executor``: None for the target's default and for what
    the tensors' device says. Raises TargetMismatch for a name that does not exist or a backend the target lacks.
    Blocks may nest (the innermost counts alone); other threads are not affected.
    """
    asked = _Request(_known_target(target, "use_target(target=...)"),
                     _known(backend or "auto", BACKEND_NAMES, "use_target(backend=...)"),
                     _known(executor or "auto", EXECUTOR_NAMES, "use_target(executor=...)"), in_context=True)
    if asked.target not in ("auto", "ascend"):
        _backend(find_target(asked.target), asked)
    token = _context.set(asked)
    try:
        yield
    finally:
        _context.reset(token)


def resolve(*tensors: torch.Tensor) -> Selection:
    """The target, backend and executor for a call on these tensors.

    Without tensors: for tensors on :func:`default_device`. Raises TargetMismatch where what is asked for contradicts
    itself or the tensors, ToolchainMissing where something it needs is not installed, and UnsupportedOnTarget for a
    device that monotile does not build for.
    """
    asked = _asked()
    kinds = {t.device.type for t in tensors}
    if len(kinds) > 1:
        raise TargetMismatch(f"tensors of one call must be on one device, these are on {', '.join(sorted(kinds))}")
    if not tensors:
        return _on(_default_kind(asked), None, asked)
    return _on(kinds.pop(), tensors[0].device.index, asked)


def default_device() -> torch.device:
    """The torch device whose tensors the current selection takes: ``cuda``, ``npu``, or ``cpu`` for the emulator."""
    import torch

    return torch.device(_default_kind(_asked()))


# ---------------------------------------------------------------------- what was asked for
def _asked() -> _Request:
    return _context.get() or _Request(
        _known_target(os.environ.get("KERNEL_TARGET", "").strip() or "auto", "KERNEL_TARGET"),
        _known(os.environ.get("KERNEL_BACKEND", "").strip() or "auto", BACKEND_NAMES, "KERNEL_BACKEND"),
        _known(os.environ.get("KERNEL_EXECUTOR", "").strip() or "auto", EXECUTOR_NAMES, "KERNEL_EXECUTOR"),
        in_context=False)


def _known_target(value: str, where: str) -> str:
    return _known("cuda" if value == CUDA_SM90.name else value, TARGET_NAMES, where)


def _known(value: str, allowed: tuple[str, ...], where: str) -> str:
    if value not in allowed:
        raise TargetMismatch(f"{where} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _backend(target: Target, asked: _Request) -> str:
    if asked.backend == "auto":
        return target.default_backend
    if asked.backend not in target.backends:
        raise TargetMismatch(f"{asked.said('backend')} is no backend of {target}, which takes "
                             f"{' or '.join(target.backends)}")
    return asked.backend


# ---------------------------------------------------------------------- by device
def _default_kind(asked: _Request) -> str:
    """The kind of device that a request without tensors means."""
    if asked.executor == "emulator":
        return "cpu"
    if asked.target == "cuda":
        return "cuda"
    if asked.target == "auto":
        import torch

        if torch.cuda.is_available():
            return "cuda"
    here = chip_here()
    fits = here is not None and asked.target in ("auto", "ascend", here.name)
    return "npu" if fits or asked.executor == "device" else "cpu"


def _on(kind: str, index: int | None, asked: _Request) -> Selection:
    if kind == "cuda":
        return _on_cuda(index, asked)
    if kind == "npu":
        return _on_npu(index, asked)
    if kind == "cpu":
        return _on_cpu(asked)
    raise TargetMismatch(f"tensors must be on cuda, npu or cpu, these are on {kind}")


def _on_cuda(index: int | None, asked: _Request) -> Selection:
    if asked.target not in ("auto", "cuda"):
        raise TargetMismatch(f"{asked.said('target')}, but the tensors are on cuda: move them to npu (or to cpu for "
                             "the emulator), or select cuda or auto")
    if asked.executor == "emulator":
        raise TargetMismatch(f"{asked.said('executor')}, but the tensors are on cuda and only Ascend targets are "
                             "emulated: move them to cpu, or select auto or device")
    capability = _cuda_capability(index)
    if capability != (9, 0):
        raise UnsupportedOnTarget(f"the GPU has compute capability {capability[0]}.{capability[1]}, and the only CUDA "
                                  "target is sm_90 (Hopper)")
    return Selection(CUDA_SM90, _backend(CUDA_SM90, asked), "device")


def _on_npu(index: int | None, asked: _Request) -> Selection:
    if asked.target == "cuda":
        raise TargetMismatch(f"{asked.said('target')}, but the tensors are on npu: move them to cuda, or select ascend "
                             "or auto")
    if asked.executor == "emulator":
        raise TargetMismatch(f"{asked.said('executor')}, but the tensors are on npu and the emulator runs on cpu "
                             "tensors: move them to cpu, or select auto or device")
    _need_device_toolchain(asked)
    name = npu_name(index)
    here = target_of_device(name) if name is not None else None
    if here is None:
        known = ", ".join(t.name for t in TARGETS.values() if t.is_ascend)
        raise UnsupportedOnTarget(f"the NPU calls itself {name!r}, which is none of {known}")
    if asked.target not in ("auto", "ascend", here.name):
        raise TargetMismatch(f"{asked.said('target')}, but the tensors are on an {name}, which is {here}: select "
                             f"{here} or ascend, or move the tensors to cpu for the emulator")
    return Selection(here, _backend(here, asked), "device")


def _on_cpu(asked: _Request) -> Selection:
    if asked.target == "cuda":
        raise TargetMismatch(f"{asked.said('target')}, but the tensors are on cpu and only Ascend targets are "
                             "emulated: move them to cuda, or select an Ascend target")
    if asked.executor == "device":
        _need_device_toolchain(asked)
        raise TargetMismatch(f"{asked.said('executor')}, but the tensors are on cpu: move them to npu, or select "
                             "auto or emulator")
    if asked.target == "auto":
        target = ASCEND_910B
    elif asked.target == "ascend":
        target = chip_here() or ASCEND_910B
    else:
        target = find_target(asked.target)
    return Selection(target, _backend(target, asked), "emulator")


def _need_device_toolchain(asked: _Request) -> None:
    from monotile.compat import versions

    why = asked.said("executor") if asked.executor == "device" else "running on an NPU"
    emulate = "or set KERNEL_EXECUTOR=emulator and use cpu tensors"
    if versions.torch_npu() is None:
        raise ToolchainMissing(f"{why} needs torch_npu, which is not installed: pip install 'monotile[npu]' on a "
                               f"machine with an Ascend NPU, {emulate}")
    if versions.cann() is None:
        raise ToolchainMissing(f"{why} needs CANN, and ASCEND_HOME_PATH names no toolkit: install it and source its "
                               f"set_env.sh, {emulate}")


# ---------------------------------------------------------------------- what is here
@functools.cache
def npu_name(index: int | None = None) -> str | None:
    """The NPU's name for itself (``Ascend910B3``), or None without torch_npu or without an NPU."""
    from monotile.compat import versions

    if versions.torch_npu() is None:
        return None
    import torch_npu

    npu: Any = torch_npu.npu
    if not npu.is_available():
        return None
    return str(npu.get_device_name(npu.current_device() if index is None else index))


def chip_here() -> Target | None:
    """The Ascend target of this machine's NPU, or None."""
    name = npu_name()
    return target_of_device(name) if name is not None else None


@functools.cache
def _cuda_capability(index: int | None) -> tuple[int, int]:
    import torch

    if not torch.cuda.is_available():
        raise ToolchainMissing(f"target cuda needs a GPU and a torch that is built for it; torch {torch.__version__} "
                               "finds none here")
    major, minor = torch.cuda.get_device_capability(index)
    return int(major), int(minor)
