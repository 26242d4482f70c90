"""Oracles of monotile.moe."""
