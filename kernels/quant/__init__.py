"""Quantisation: casts to low-bit formats with scales, and back."""

from monotile.quant.cast_back import cast_back, per_token_cast_back
from monotile.quant.per_token_cast import (
    per_token_cast,
    per_token_cast_with_precomputed_sf,
    per_token_cast_with_sf_only,
)

__all__ = [
    "per_token_cast",
    "per_token_cast_with_precomputed_sf",
    "per_token_cast_with_sf_only",
    "cast_back",
    "per_token_cast_back",
]
