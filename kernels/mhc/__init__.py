"""Manifold-constrained hyper-connections: the kernels, forward and backward."""

from monotile.mhc.sinkhorn import mhc_sinkhorn_bwd, mhc_sinkhorn_fwd

__all__ = ["mhc_sinkhorn_bwd", "mhc_sinkhorn_fwd"]
