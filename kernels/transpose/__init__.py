"""Transposes."""

from monotile.transpose.batched_transpose import batched_transpose, transpose

__all__ = ["batched_transpose", "transpose"]
