"""Oracles of monotile.quant."""
