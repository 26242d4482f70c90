"""Kernels that autograd and torch.compile understand."""

from monotile.modeling import mhc

__all__ = ["mhc"]
