"""Manifold-constrained hyper-connections for models: :mod:`monotile.modeling.mhc.ops`."""

from monotile.modeling.mhc import ops

__all__ = ["ops"]
