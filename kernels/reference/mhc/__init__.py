"""Oracles of monotile.mhc."""
