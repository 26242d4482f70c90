"""Oracles of monotile.transpose."""
