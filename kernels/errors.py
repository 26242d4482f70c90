"""The errors of monotile, for users: ``from monotile.errors import LoweringError``."""

from monotile.compat.errors import (
    LoweringError,
    MonotileError,
    TargetMismatch,
    TileTooLarge,
    TilingError,
    ToolchainMissing,
    UnsupportedOnTarget,
)

__all__ = [
    "LoweringError",
    "MonotileError",
    "TargetMismatch",
    "TileTooLarge",
    "TilingError",
    "ToolchainMissing",
    "UnsupportedOnTarget",
]
