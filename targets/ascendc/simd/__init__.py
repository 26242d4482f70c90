"""Tile-level statements as SIMD: T.Parallel nests, copies, fills and reductions over UB in whole vector registers.

    addresses     where an access lies, as a linear form of the nest's loops
    expressions   a nest's expressions as T.simd calls on 64 lanes of 32 bits
    nests         nests and reductions as loops over registers, tails by mask
    region        a region's statements in order, with barriers between dependent ones

What has no form here is refused in words (NoSimd), and the region stays SIMT.
"""

from monotile.targets.ascendc.simd.region import NoSimd, simd_block, simd_statements

__all__ = ["NoSimd", "simd_block", "simd_statements"]
