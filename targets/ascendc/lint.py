"""Refuses text that TileLang 0.1.15 gets wrong; docs/upstream-issues.md has each fault with its smallest case."""

from __future__ import annotations

import re

WARP = 32
_REDUCTION = re.compile(r"AscendAllReduce<[\w:]+, (\d+), \d+(?:, \d+)?>")
_NO_SUCH_VECTOR = re.compile(r"make_fp8_\w+")
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")


def faults(text: str) -> list[str]:
    """What is wrong with AscendC text, in words; nothing for text that may be used."""
    found = []
    for function in text.split("__simt_vf__")[1:]:
        bounds = _BOUNDS.search(function)
        threads = int(bounds.group(1)) if bounds else 0
        sizes = {int(size) for size in _REDUCTION.findall(function)}
        found += [f"a reduction over {size} of {threads} threads: its groups would share one scratch buffer"
                  for size in sorted(sizes) if WARP < size < threads]
    return found


def needs_scalars(text: str) -> bool:
    """Does the text use a vector of fp8 that no header defines? Without vectors it does not."""
    return _NO_SUCH_VECTOR.search(text) is not None


def group_sizes(text: str) -> list[int]:
    """Thread counts under which the reductions of this text would be whole blocks, the largest first."""
    return sorted({int(size) for size in _REDUCTION.findall(text) if int(size) > WARP}, reverse=True)
