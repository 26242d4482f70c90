"""Errors that users of monotile meet: each is one sentence that says what is wrong and what would work.

All derive from :class:`MonotileError`. Those where an argument (a tensor, a tile, a name of a target) is at fault are
also ``ValueError``; the others are ``RuntimeError``. An op's checks of its own arguments raise plain ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MonotileError(Exception):
    """Base class of every error that monotile raises on its own account."""


class TargetMismatch(MonotileError, ValueError):
    """The target, backend or executor asked for contradicts the tensors, or is not a name that exists."""


class UnsupportedOnTarget(MonotileError, ValueError):
    """The target cannot do this: a dtype, an argument's value, or a backend that is not built."""


class ToolchainMissing(MonotileError, RuntimeError):
    """A program, package or device that the request needs is not here; the message says how to get it."""


class TilingError(MonotileError, ValueError):
    """A tiling names an op or a key that does not exist, or its file is malformed; the message has file and line."""


class TileTooLarge(MonotileError, ValueError):
    """A kernel's tile does not fit in the target's on-chip memory. Found before any compiler runs."""

    def __init__(self, op: str, target: str, tile: Mapping[str, Any], need: int, limit: int) -> None:
        self.op, self.target, self.tile, self.need, self.limit = op, target, dict(tile), need, limit
        shown = ", ".join(f"{key}={value}" for key, value in self.tile.items())
        super().__init__(f"{op}: the tile ({shown}) keeps {need} bytes on chip, and {target} has {limit}; "
                         "choose a smaller tile")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.op, self.target, self.tile, self.need, self.limit)


class LoweringError(MonotileError, RuntimeError):
    """A kernel could not be lowered, or the vendor's compiler refused what was emitted.

    ``stage`` is where: ``trace``, ``emit``, ``accept``, ``link``, ``compile`` or ``load``. ``statement`` and ``line``
    are the source's, where known; ``saved`` is where the emitted text was kept.
    """

    def __init__(self, op: str, target: str, stage: str, reason: str, statement: str | None = None,
                 line: str | int | None = None, saved: str | Path | None = None) -> None:
        self.op, self.target, self.stage, self.reason = op, target, stage, reason
        self.statement, self.line, self.saved = statement, line, saved
        message = f"{op} on {target}: {stage} failed: {reason}"
        if statement is not None:
            message += f"\n  in the statement: {statement}"
        if line is not None:
            message += f"\n  at {line}"
        if saved is not None:
            message += f"\n  the source was kept in {saved}"
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.op, self.target, self.stage, self.reason, self.statement, self.line, self.saved)
