"""Kernels: a TileLang source with open numbers, registered under one name.

    @kernel("moe.normalize_weight", tiling=Tiling(tokens=128, threads=128), live_bytes=...)
    def normalize_weight_kernel(top_k: int, *, tile: Tiling):
        ...
        return normalize_weight      # a T.prim_func

Parameters are compile-time numbers (sizes, formats); what changes from call to call is dynamic in the PrimFunc.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from monotile.compat.capability import capabilities
from monotile.compat.errors import LoweringError, MonotileError, TileTooLarge
from monotile.targets.spec import Target
from monotile.targets.tiling import Tiling, declare, resolve_tiling

_registry: dict[str, Kernel] = {}


class Kernel:
    """A builder of PrimFuncs. Made by :func:`kernel`."""

    def __init__(self, op: str, builder: Callable[..., Any], tiling: Tiling, live_bytes: Callable[..., int]) -> None:
        self.op, self.builder, self.tiling, self._live_bytes = op, builder, tiling, live_bytes
        self.params = tuple(p for p in inspect.signature(builder).parameters if p != "tile")
        self.__doc__ = builder.__doc__

    def tile_for(self, target: Target, params: Mapping[str, Any]) -> Tiling:
        """The tiling on this target for these parameters, checked against what the chip can hold."""
        tile = resolve_tiling(self.op, self.tiling, target, params)
        self.check_fits(target, tile, params)
        return tile

    def live_bytes(self, tile: Tiling, params: Mapping[str, Any]) -> int:
        """Bytes that one tile keeps on chip: every buffer that the source allocates, times its stages."""
        return int(self._live_bytes(tile, **params))

    def check_fits(self, target: Target, tile: Tiling, params: Mapping[str, Any]) -> None:
        need = self.live_bytes(tile, params)
        if need > target.on_chip_bytes:
            raise TileTooLarge(self.op, target.name, tile, need, target.on_chip_bytes)

    def trace(self, target: Target, tile: Tiling, params: Mapping[str, Any]) -> Any:
        """The PrimFunc. Of the target, only what compat's macros ask for is visible to the source."""
        try:
            with capabilities(target.hardware_casts), _without_dumps():
                return self.builder(**params, tile=tile)
        except MonotileError:
            raise
        except Exception as error:   # TileLang's front end raises many types; the reader needs kernel and line
            statement, line = self._place(error)
            raise LoweringError(self.op, target.name, "trace", f"{type(error).__name__}: {error}", statement,
                                line) from error

    def _place(self, error: Exception) -> tuple[str | None, str | None]:
        """The last statement of the kernel's own file that was on its way, and where that is."""
        own = [frame for frame in traceback.extract_tb(error.__traceback__)
               if frame.filename == self.builder.__code__.co_filename]
        return (own[-1].line, f"{own[-1].filename}:{own[-1].lineno}") if own else (None, None)

    def __repr__(self) -> str:
        return f"<kernel {self.op}({', '.join(self.params)})>"


@contextmanager
def _without_dumps() -> Iterator[None]:
    """TileLang's front end logs its whole generated program before it raises; the error says enough."""
    logger = logging.getLogger("tilelang.language.eager.builder")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def kernel(op: str, *, tiling: Tiling, live_bytes: Callable[..., int]) -> Callable[[Callable[..., Any]], Kernel]:
    """Register a builder ``(parameters..., *, tile) -> T.prim_func`` as the kernel ``op`` (``module.name``).

    ``live_bytes(tile, **parameters)`` counts every on-chip buffer of the source once per stage, with the bytes of its
    dtype. An op of several kernels names each (``mhc.sinkhorn_forward``).
    """
    def register(builder: Callable[..., Any]) -> Kernel:
        if op in _registry:
            raise ValueError(f"kernel {op!r} is registered twice")
        made = Kernel(op, builder, tiling, live_bytes)
        _registry[op] = made
        declare(op, tiling, made.params)
        return made

    return register


def kernels() -> Mapping[str, Kernel]:
    """Every kernel registered so far, by name."""
    return dict(sorted(_registry.items()))


def find_kernel(op: str) -> Kernel:
    if op not in _registry:
        raise ValueError(f"there is no kernel {op!r}; the kernels are {', '.join(sorted(_registry)) or 'none'}")
    return _registry[op]
