"""The HIVM text of one small kernel a rule, compared with a file to the letter.

`MONOTILE_UPDATE_GOLDEN=1 pytest tests/lowering/test_npuir_golden.py` rewrites the files; read the diff before
committing it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monotile.compat import language as T
from monotile.targets.npuir.emit import emit

FOLDER = Path(__file__).with_name("golden")


def tail_copy() -> Any:
    """A ragged tail fills only when short; a copy with a cast goes through one tile."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 64), T.bfloat16], y: T.Tensor[(n, 64), T.float32]):
        with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
            tile = T.alloc_fragment((8, 64), T.float32)
            T.copy(x[block * 8, 0], tile)
            T.copy(tile, y[block * 8, 0])
    return kernel


def grid_of_three() -> Any:
    """A grid of three dimensions is one persistent loop, the first dimension fastest."""
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 2, m), T.int32], y: T.Tensor[(n, 2, m), T.int32]):
        with T.Kernel(T.ceildiv(m, 64), 2, n, threads=128) as (i, j, k):
            tile = T.alloc_shared((64,), T.int32)
            T.copy(x[k, j, i * 64], tile)
            T.copy(tile, y[k, j, i * 64])
    return kernel


def strided_rows() -> Any:
    """A row stride is one more scalar argument."""
    n, stride = T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def kernel(x: T.StridedTensor[(n, 64), (stride, 1), T.float32], y: T.Tensor[(n, 64), T.float32]):
        with T.Kernel(n, threads=32) as block:
            tile = T.alloc_shared((64,), T.float32)
            T.copy(x[block, 0], tile)
            T.copy(tile, y[block, 0])
    return kernel


def reduce_and_broadcast() -> Any:
    """Last-axis reduction, and its result spread back by vbrc."""
    @T.prim_func
    def kernel(x: T.Tensor[(8, 64), T.float32], y: T.Tensor[(8, 64), T.float32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_fragment((8, 64), T.float32)
            total = T.alloc_fragment((8,), T.float32)
            T.copy(x, tile)
            T.reduce_sum(tile, total, dim=1)
            for i, j in T.Parallel(8, 64):
                tile[i, j] = tile[i, j] / total[i]
            T.copy(tile, y)
    return kernel


def middle_axis() -> Any:
    """The library has no middle-axis reduction: slices in ascending order; a middle broadcast is inline."""
    @T.prim_func
    def kernel(x: T.Tensor[(4, 4, 64), T.float32], y: T.Tensor[(4, 4, 64), T.float32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_fragment((4, 4, 64), T.float32)
            total = T.alloc_fragment((4, 64), T.float32)
            T.copy(x, tile)
            T.reduce_sum(tile, total, dim=1)
            for i, j, k in T.Parallel(4, 4, 64):
                tile[i, j, k] = tile[i, j, k] - total[i, k]
            T.copy(tile, y)
    return kernel


def padded_rows() -> Any:
    """Rows of 20 bytes: the tiles are padded to 32-byte blocks."""
    @T.prim_func
    def kernel(x: T.Tensor[(8, 5), T.float32], s: T.Tensor[(8,), T.float32], y: T.Tensor[(8, 5), T.float32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_fragment((8, 5), T.float32)
            scale = T.alloc_fragment((8,), T.float32)
            T.copy(x, tile)
            T.copy(s, scale)
            for i, j in T.Parallel(8, 5):
                tile[i, j] = tile[i, j] * scale[i]
            T.copy(tile, y)
    return kernel


def select_and_compare() -> Any:
    """Ordered i32 comparison by maximum; a loop variable as a value by varange, made once a turn."""
    @T.prim_func
    def kernel(x: T.Tensor[(4, 64), T.int32], y: T.Tensor[(4, 64), T.int32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_fragment((4, 64), T.int32)
            T.copy(x, tile)
            for i, j in T.Parallel(4, 64):
                tile[i, j] = T.if_then_else(tile[i, j] < 7, j, tile[i, j])
            T.copy(tile, y)
    return kernel


def bits() -> Any:
    """Bit operations take one register of the constant, repeated; a reinterpret is a bitcast."""
    @T.prim_func
    def kernel(x: T.Tensor[(4, 64), T.float32], y: T.Tensor[(4, 64), T.int32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_fragment((4, 64), T.float32)
            out = T.alloc_fragment((4, 64), T.int32)
            T.copy(x, tile)
            for i, j in T.Parallel(4, 64):
                out[i, j] = T.bitwise_and(T.reinterpret(tile[i, j], "int32") >> 23, 255)
            T.copy(out, y)
    return kernel


def transpose() -> Any:
    """A permuted destination is a vtranspose of whole tiles."""
    @T.prim_func
    def kernel(x: T.Tensor[(32, 64), T.float32], y: T.Tensor[(64, 32), T.float32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_shared((32, 64), T.float32)
            turned = T.alloc_shared((64, 32), T.float32)
            T.copy(x, tile)
            for i, j in T.Parallel(32, 64):
                turned[j, i] = tile[i, j]
            T.copy(turned, y)
    return kernel


def even_columns() -> Any:
    """A step of two is a deinterleave."""
    @T.prim_func
    def kernel(x: T.Tensor[(4, 64), T.int32], y: T.Tensor[(4, 32), T.int32]):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_shared((4, 64), T.int32)
            out = T.alloc_shared((4, 32), T.int32)
            T.copy(x, tile)
            for i, j in T.Parallel(4, 32):
                out[i, j] = tile[i, 2 * j] + tile[i, 2 * j + 1]
            T.copy(out, y)
    return kernel


def gather() -> Any:
    """A tile's values as a row index: the outer axis becomes a scalar loop of row loads."""
    k = T.dynamic("k")

    @T.prim_func
    def kernel(x: T.Tensor[(k, 64), T.float32], index: T.Tensor[(8,), T.int32], y: T.Tensor[(8, 64), T.float32]):
        with T.Kernel(1, threads=128) as _:
            at = T.alloc_shared((8,), T.int32)
            out = T.alloc_shared((8, 64), T.float32)
            T.copy(index, at)
            for i, j in T.Parallel(8, 64):
                out[i, j] = T.if_then_else(at[i] >= 0, x[at[i], j], 0.0)
            T.copy(out, y)
    return kernel


RULES: list[Callable[[], Any]] = [tail_copy, grid_of_three, strided_rows, reduce_and_broadcast, middle_axis,
                                  padded_rows, select_and_compare, bits, transpose, even_columns, gather]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_text_is_the_golden_one(rule: Callable[[], Any]) -> None:
    text = emit(rule(), "Ascend910B3", f"golden.{rule.__name__}").text
    path = FOLDER / f"{rule.__name__}.mlir"
    if os.environ.get("MONOTILE_UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_rule() -> None:
    assert {path.stem for path in FOLDER.glob("*.mlir")} == {rule.__name__ for rule in RULES}


def test_emission_is_deterministic() -> None:
    assert emit(gather(), "Ascend910B3", "golden.gather").text == emit(gather(), "Ascend910B3", "golden.gather").text
