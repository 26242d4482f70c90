"""Differentiable operators of manifold-constrained hyper-connections."""

from monotile.modeling.mhc.ops.sinkhorn import sinkhorn_normalize

__all__ = ["sinkhorn_normalize"]
