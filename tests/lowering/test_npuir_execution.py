"""Each rule of the AscendNPU-IR emitter, from TileLang source to executed final IR.

A case is a small kernel, its inputs and what NumPy says. It is emitted, compiled by bishengir-compile for the 910B,
linked against the vector library's symbols, and executed by the checked emulator with few and with many blocks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from monotile.compat import language as T
from monotile.compat.errors import LoweringError
from monotile.targets.npuir import abi, toolchain
from monotile.targets.npuir.emit import emit
from monotile.targets.npuir.emulator import Program

SUM_ATOL = 100 * 2.0**-23 * 4   # sums of up to 100 values of size 4, in any order of addition
CHIP, GENERATION, UB_BYTES = "Ascend910B3", "c220", 192 * 1024
f32, i32 = np.float32, np.int32


def execute(func: Any, arrays: list[np.ndarray], symbols: list[int], blocks: int) -> toolchain.Compiled:
    emitted = emit(func, CHIP, "test.case")
    compiled = toolchain.compile_to_final(emitted.text, CHIP, GENERATION, "test.case")
    program = Program.from_ir(compiled.generic_ir, op="test.case", ub_bytes=UB_BYTES)
    program.run(abi.pack([a.reshape(-1) for a in arrays], symbols), blocks=blocks, checked=True)
    return compiled


def check(build: Callable[[], Any], inputs: list[np.ndarray], expected: list[np.ndarray], symbols: list[int],
          exact: bool = True, atol: float = 1e-7) -> None:
    for blocks in (2, 40):
        outputs = [np.full_like(e, 77) for e in expected]
        execute(build(), [*inputs, *outputs], symbols, blocks)
        for got, want in zip(outputs, expected):
            if exact:
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=2e-6, atol=atol)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def integers(*shape: int, low: int = -1000, high: int = 1000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(i32)


def elementwise(expression: Callable[..., Any], dtype: str = "float32", out: str | None = None, columns: int = 128,
                rows: int = 8, operands: int = 1) -> Callable[[], Any]:
    """A kernel that applies ``expression`` to tiles of ``operands`` (n, columns) tensors."""
    def build() -> Any:
        n = T.dynamic("n")
        result = out or dtype
        if operands == 1:
            @T.prim_func
            def unary(x: T.Tensor[(n, columns), dtype], y: T.Tensor[(n, columns), result]):
                with T.Kernel(T.ceildiv(n, rows), threads=128) as block:
                    a = T.alloc_fragment((rows, columns), dtype)
                    c = T.alloc_fragment((rows, columns), result)
                    T.copy(x[block * rows, 0], a)
                    for i, j in T.Parallel(rows, columns):
                        c[i, j] = expression(a[i, j])
                    T.copy(c, y[block * rows, 0])
            return unary

        @T.prim_func
        def binary(x: T.Tensor[(n, columns), dtype], z: T.Tensor[(n, columns), dtype],
                   y: T.Tensor[(n, columns), result]):
            with T.Kernel(T.ceildiv(n, rows), threads=128) as block:
                a = T.alloc_fragment((rows, columns), dtype)
                b = T.alloc_fragment((rows, columns), dtype)
                c = T.alloc_fragment((rows, columns), result)
                T.copy(x[block * rows, 0], a)
                T.copy(z[block * rows, 0], b)
                for i, j in T.Parallel(rows, columns):
                    c[i, j] = expression(a[i, j], b[i, j])
                T.copy(c, y[block * rows, 0])
        return binary
    return build


UNARY_FLOAT = {
    "scalar after": (lambda a: a * 2.0 + 1.0, lambda a: a * f32(2) + f32(1)),
    "scalar before": (lambda a: 1.0 - 3.0 / (a + 10.0), lambda a: f32(1) - f32(3) / (a + f32(10))),
    "abs": (lambda a: T.abs(a), np.abs),
    "exp": (lambda a: T.exp(a), np.exp),
    "sqrt": (lambda a: T.sqrt(T.abs(a)), lambda a: np.sqrt(np.abs(a))),
    "log": (lambda a: T.log(T.abs(a) + 1.0), lambda a: np.log(np.abs(a) + f32(1))),
    "rsqrt": (lambda a: T.rsqrt(T.abs(a) + 1.0), lambda a: f32(1) / np.sqrt(np.abs(a) + f32(1))),
    "sigmoid": (lambda a: T.sigmoid(a), lambda a: f32(1) / (f32(1) + np.exp(-a))),
    "clamp": (lambda a: T.min(T.max(a, -0.5), 0.5), lambda a: np.clip(a, f32(-0.5), f32(0.5))),
    "select": (lambda a: T.if_then_else(a > 0.0, a, a * 0.5), lambda a: np.where(a > 0, a, a * f32(0.5))),
    "select scalars": (lambda a: T.if_then_else(a > 0.0, 1.0, -1.0), lambda a: np.where(a > 0, f32(1), f32(-1))),
    "and or not": (lambda a: T.if_then_else(T.Not(T.And(a > -1.0, T.Or(a < 0.0, a > 1.0))), a, 9.0),
                   lambda a: np.where(~((a > -1) & ((a < 0) | (a > 1))), a, f32(9))),
    "floor": (lambda a: T.floor(a * 4.0), lambda a: np.floor(a * f32(4))),
    "ceil": (lambda a: T.ceil(a * 4.0), lambda a: np.ceil(a * f32(4))),
    "bits": (lambda a: T.reinterpret(T.bitwise_and(T.reinterpret(a, "int32"), 0x7FFF0000), "float32"),
             lambda a: (a.view(i32) & i32(0x7FFF0000)).view(f32)),
}


@pytest.mark.parametrize("name", UNARY_FLOAT)
def test_float_expressions(name: str) -> None:
    expression, oracle = UNARY_FLOAT[name]
    x = normal(29, 128)
    exact = name not in ("exp", "log", "rsqrt", "sigmoid")
    check(elementwise(expression), [x], [oracle(x).astype(f32)], [29], exact)


UNARY_INTEGER = {
    "arithmetic": (lambda a: a * 3 - 7, lambda a: a * 3 - 7),
    "scalar first": (lambda a: 100 - a, lambda a: 100 - a),
    "shift right": (lambda a: a >> 3, lambda a: a >> 3),
    "shift left": (lambda a: a << 5, lambda a: a << 5),
    "and or xor": (lambda a: ((a & 255) | 1024) ^ 3, lambda a: ((a & 255) | 1024) ^ 3),
    "not": (lambda a: ~a, lambda a: ~a),
    "floor division": (lambda a: a // 8, lambda a: a // 8),
    "floor modulo": (lambda a: a % 8, lambda a: a % 8),
    "less": (lambda a: T.if_then_else(a < 17, a, -1), lambda a: np.where(a < 17, a, -1)),
    "less equal": (lambda a: T.if_then_else(a <= 17, a, -1), lambda a: np.where(a <= 17, a, -1)),
    "greater": (lambda a: T.if_then_else(a > 17, a, -1), lambda a: np.where(a > 17, a, -1)),
    "greater equal": (lambda a: T.if_then_else(a >= 17, a, -1), lambda a: np.where(a >= 17, a, -1)),
    "equal": (lambda a: T.if_then_else(a == 17, 1, 0), lambda a: (a == 17).astype(i32)),
    "abs": (lambda a: T.abs(a), np.abs),
}


@pytest.mark.parametrize("name", UNARY_INTEGER)
def test_integer_expressions(name: str) -> None:
    expression, oracle = UNARY_INTEGER[name]
    x = integers(29, 128, low=-50, high=50)
    check(elementwise(expression, "int32"), [x], [oracle(x).astype(i32)], [29])


def test_two_operands_and_a_shared_subexpression() -> None:
    x, z = normal(29, 128), normal(29, 128, seed=1)
    check(elementwise(lambda a, b: (a + b) * (a + b) / T.max(a * b, 1.0), operands=2), [x, z],
          [((x + z) * (x + z) / np.maximum(x * z, f32(1))).astype(f32)], [29])


CASTS = [("float32", "int32"), ("int32", "float32"), ("float32", "float16"), ("float16", "float32"),
         ("float16", "int32"), ("int32", "int64"), ("int64", "int32"), ("int32", "int16"), ("int16", "int32"),
         ("int32", "int8"), ("int8", "int32"), ("uint8", "int32"), ("int32", "uint8"), ("int8", "float32"),
         ("uint8", "float32"), ("int16", "float32"), ("int64", "float32"), ("float32", "int64")]


@pytest.mark.parametrize("source,target", CASTS, ids=lambda v: str(v))
def test_casts(source: str, target: str) -> None:
    small = "8" in source or "8" in target
    low = 0 if "uint" in source + target else -120
    values = integers(29, 128, low=low, high=250 if "uint8" in source else 120) if small else integers(29, 128)
    x = values.astype(source)
    if source == "float32" and not small:
        x = (x + f32(0.75)).astype(f32)
    with np.errstate(all="ignore"):
        want = x.astype(target)
    check(elementwise(lambda a: T.cast(a, target), source, target), [x], [want], [29])


def bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(f32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(f32)


def test_bf16_arithmetic_is_done_in_f32_and_rounded_once_an_operation() -> None:
    x = bf16(normal(29, 128))
    product = bf16(from_bf16(x) * from_bf16(x))
    want = bf16(from_bf16(product) + from_bf16(x))
    check(elementwise(lambda a: a * a + a, "bfloat16"), [x], [want], [29])


@pytest.mark.parametrize("shape", [(13, 8), (13, 64), (13, 100), (13, 5), (13, 1)], ids=str)
@pytest.mark.parametrize("operation", ["max", "sum", "absmax", "min"])
def test_reduce_last_axis_and_broadcast_back(operation: str, shape: tuple[int, int]) -> None:
    rows, columns = 4, shape[1]

    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, columns), T.float32], y: T.Tensor[(n, columns), T.float32]):
            with T.Kernel(T.ceildiv(n, rows), threads=128) as block:
                a = T.alloc_fragment((rows, columns), T.float32)
                r = T.alloc_fragment((rows,), T.float32)
                T.copy(x[block * rows, 0], a)
                if operation == "max":
                    T.reduce_max(a, r, dim=1)
                elif operation == "sum":
                    T.reduce_sum(a, r, dim=1)
                elif operation == "min":
                    T.reduce_min(a, r, dim=1)
                else:
                    T.reduce_absmax(a, r, dim=1)
                for i, j in T.Parallel(rows, columns):
                    a[i, j] = a[i, j] - r[i]
                T.copy(a, y[block * rows, 0])
        return kernel

    x = normal(*shape)
    reduced = {"max": x.max(1), "min": x.min(1), "sum": x.sum(1), "absmax": np.abs(x).max(1)}[operation]
    check(build, [x], [(x - reduced[:, None]).astype(f32)], [shape[0]], exact=operation != "sum", atol=SUM_ATOL)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("operation", ["max", "sum"])
@pytest.mark.parametrize("extents", [(4, 4, 64), (2, 24, 8), (16, 3, 16)], ids=str)
def test_reduce_any_axis_of_three(axis: int, operation: str, extents: tuple[int, int, int]) -> None:
    a0, a1, a2 = extents
    kept = tuple(e for d, e in enumerate(extents) if d != axis)

    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, a0, a1, a2), T.float32], y: T.Tensor[(n, *kept), T.float32]):
            with T.Kernel(n, threads=128) as block:
                a = T.alloc_fragment((a0, a1, a2), T.float32)
                r = T.alloc_fragment(kept, T.float32)
                T.copy(x[block, 0, 0, 0], a)
                if operation == "max":
                    T.reduce_max(a, r, dim=axis)
                else:
                    T.reduce_sum(a, r, dim=axis)
                T.copy(r, y[block, 0, 0])
        return kernel

    x = normal(3, *extents)
    want = (x.max if operation == "max" else x.sum)(axis + 1)
    check(build, [x], [want.astype(f32)], [3], exact=operation == "max", atol=SUM_ATOL)


def test_reduce_without_clear_accumulates() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 256), T.float32], y: T.Tensor[(n,), T.float32]):
            with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
                a = T.alloc_fragment((8, 64), T.float32)
                r = T.alloc_fragment((8,), T.float32)
                T.fill(r, 0.0)
                for k in T.Pipelined(4, num_stages=2):
                    T.copy(x[block * 8, k * 64], a)
                    T.reduce_max(a, r, dim=1, clear=False)
                T.copy(r, y[block * 8])
        return kernel

    x = normal(21, 256)
    check(build, [x], [np.maximum(x.max(1), f32(0))], [21])


@pytest.mark.parametrize("integer", [False, True])
def test_integer_reductions(integer: bool) -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 64), T.int32], y: T.Tensor[(n,), T.int32]):
            with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
                a = T.alloc_fragment((8, 64), T.int32)
                r = T.alloc_fragment((8,), T.int32)
                T.copy(x[block * 8, 0], a)
                if integer:
                    T.reduce_sum(a, r, dim=1)
                else:
                    T.reduce_min(a, r, dim=1)
                T.copy(r, y[block * 8])
        return kernel

    x = integers(21, 64)
    check(build, [x], [(x.sum(1) if integer else x.min(1)).astype(i32)], [21])


@pytest.mark.parametrize("permutation", [(0, 2, 1), (2, 0, 1), (1, 2, 0), (2, 1, 0), (1, 0, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("extents", [(2, 32, 64), (4, 5, 32)], ids=str)
def test_permuted_destination(permutation: tuple[int, int, int], dtype: str, extents: tuple[int, int, int]) -> None:
    shape = tuple(extents[p] for p in permutation)

    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, *extents), dtype], y: T.Tensor[(n, *shape), dtype]):
            with T.Kernel(n, threads=128) as block:
                a = T.alloc_shared(extents, dtype)
                b = T.alloc_shared(shape, dtype)
                T.copy(x[block, 0, 0, 0], a)
                for i, j, k in T.Parallel(*extents):
                    p = (i, j, k)
                    b[p[permutation[0]], p[permutation[1]], p[permutation[2]]] = a[i, j, k]
                T.copy(b, y[block, 0, 0, 0])
        return kernel

    x = integers(3, *extents, low=-100, high=100).astype("uint16" if dtype == "bfloat16" else dtype)
    check(build, [x], [np.ascontiguousarray(x.transpose(0, *(p + 1 for p in permutation)))], [3])


def test_permuted_read_of_global_memory() -> None:
    """Tokens innermost on chip, outermost in memory: Sinkhorn's layout."""
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 4, 4), T.float32], y: T.Tensor[(n, 4, 4), T.float32]):
            with T.Kernel(T.ceildiv(n, 64), threads=128) as block:
                a = T.alloc_fragment((4, 4, 64), T.float32)
                for p, q, t in T.Parallel(4, 4, 64):
                    a[p, q, t] = x[block * 64 + t, p, q]
                for p, q, t in T.Parallel(4, 4, 64):
                    y[block * 64 + t, q, p] = a[p, q, t] * 2.0
        return kernel

    x = normal(150, 4, 4)
    check(build, [x], [np.ascontiguousarray(x.transpose(0, 2, 1)) * f32(2)], [150])


@pytest.mark.parametrize("columns", [576, 72, 3])
@pytest.mark.parametrize("tile", [(4, 128), (8, 64)])
def test_tails_on_both_axes(columns: int, tile: tuple[int, int]) -> None:
    bm, bn = tile

    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, columns), T.bfloat16], y: T.Tensor[(n, columns), T.bfloat16]):
            with T.Kernel(T.ceildiv(columns, bn), T.ceildiv(n, bm), threads=128) as (bx, by):
                a = T.alloc_shared((bm, bn), T.bfloat16)
                T.copy(x[by * bm, bx * bn], a)
                T.copy(a, y[by * bm, bx * bn])
        return kernel

    x = integers(13, columns, low=0, high=60000).astype(np.uint16)
    check(build, [x], [x], [13])


def test_row_stride() -> None:
    def build() -> Any:
        n, stride = T.dynamic("n"), T.dynamic("stride")

        @T.prim_func
        def kernel(x: T.StridedTensor[(n, 64), (stride, 1), T.float32], y: T.Tensor[(n, 64), T.float32]):
            with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
                a = T.alloc_fragment((8, 64), T.float32)
                T.copy(x[block * 8, 0], a)
                T.copy(a, y[block * 8, 0])
        return kernel

    x = normal(21, 100)
    check(build, [x], [np.ascontiguousarray(x[:, :64])], [21, 100])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_columns_of_global_memory(dtype: str) -> None:
    """A single column is read and written element by element, each through its own 32-byte block."""
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 5), dtype], y: T.Tensor[(n, 3), dtype]):
            with T.Kernel(T.ceildiv(n, 16), threads=128) as block:
                a = T.alloc_shared((16,), dtype)
                for t in T.Parallel(16):
                    a[t] = x[block * 16 + t, 2]
                for t in T.Parallel(16):
                    y[block * 16 + t, 1] = a[t]
        return kernel

    x = integers(37, 5, low=0, high=60000).astype({"float32": f32, "int32": i32, "bfloat16": np.uint16}[dtype])
    want = np.full((37, 3), 77, x.dtype)
    want[:, 1] = x[:, 2]
    check(build, [x], [want], [37])


def test_split_index_and_reshape() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 512), T.float32], y: T.Tensor[(n, 512), T.float32],
                   s: T.Tensor[(n, 4), T.float32]):
            with T.Kernel(T.ceildiv(n, 4), threads=128) as block:
                a = T.alloc_fragment((4, 512), T.float32)
                m = T.alloc_fragment((4, 4), T.float32)
                T.copy(x[block * 4, 0], a)
                groups = T.reshape(a, (4, 4, 128))
                T.reduce_absmax(groups, m, dim=2)
                for i, g, c in T.Parallel(4, 4, 128):
                    groups[i, g, c] = a[i, g * 128 + c] / m[i, g]
                T.copy(a, y[block * 4, 0])
                T.copy(m, s[block * 4, 0])
        return kernel

    x = normal(10, 512)
    amax = np.abs(x.reshape(10, 4, 128)).max(2)
    check(build, [x], [(x.reshape(10, 4, 128) / amax[:, :, None]).reshape(10, 512), amax], [10])


def test_even_and_odd_columns() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 128), T.int32], y: T.Tensor[(n, 64), T.int32]):
            with T.Kernel(T.ceildiv(n, 4), threads=128) as block:
                a = T.alloc_fragment((4, 128), T.int32)
                b = T.alloc_fragment((4, 64), T.int32)
                T.copy(x[block * 4, 0], a)
                for i, j in T.Parallel(4, 64):
                    b[i, j] = a[i, 2 * j] | (a[i, 2 * j + 1] << 4)
                T.copy(b, y[block * 4, 0])
        return kernel

    x = integers(10, 128, low=0, high=16)
    check(build, [x], [x[:, ::2] | (x[:, 1::2] << 4)], [10])


def test_loop_variables_as_values() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 64), T.float32], y: T.Tensor[(n, 64), T.int32]):
            with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
                a = T.alloc_fragment((8, 64), T.float32)
                b = T.alloc_fragment((8, 64), T.int32)
                T.copy(x[block * 8, 0], a)
                for i, j in T.Parallel(8, 64):
                    b[i, j] = T.if_then_else(a[i, j] > 0.0, j, (block * 8 + i) * 100)
                T.copy(b, y[block * 8, 0])
        return kernel

    x = normal(21, 64)
    rows, columns = np.meshgrid(np.arange(21), np.arange(64), indexing="ij")
    check(build, [x], [np.where(x > 0, columns, rows * 100).astype(i32)], [21])


def test_gather_rows_with_minus_one() -> None:
    def build() -> Any:
        n, k = T.dynamic("n"), T.dynamic("k")

        @T.prim_func
        def kernel(x: T.Tensor[(k, 96), T.bfloat16], index: T.Tensor[(n,), T.int32], y: T.Tensor[(n, 96), T.bfloat16]):
            with T.Kernel(T.ceildiv(n, 16), threads=128) as block:
                at = T.alloc_shared((16,), T.int32)
                rows = T.alloc_shared((16, 96), T.bfloat16)
                T.copy(index[block * 16], at)
                for i, j in T.Parallel(16, 96):
                    rows[i, j] = T.if_then_else(at[i] >= 0, x[at[i], j], T.cast(0, "bfloat16"))
                T.copy(rows, y[block * 16, 0])
        return kernel

    x = integers(50, 96, low=0, high=60000).astype(np.uint16)
    index = integers(41, low=-1, high=50)
    check(build, [x, index], [np.where(index[:, None] >= 0, x[np.maximum(index, 0)], 0).astype(np.uint16)], [50, 41])


def test_scatter_rows_and_scalar_control_flow() -> None:
    def build() -> Any:
        n = T.dynamic("n")
        m = T.dynamic("m")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 64), T.float32], index: T.Tensor[(n, 3), T.int32], y: T.Tensor[(m, 64), T.float32]):
            with T.Kernel(n, threads=128) as block:
                row = T.alloc_fragment((64,), T.float32)
                T.copy(x[block, 0], row)
                for k in T.serial(3):
                    position = index[block, k]
                    if position >= 0:
                        T.copy(row, y[position, 0])
        return kernel

    x = normal(9, 64)
    index = np.array(np.random.default_rng(0).permutation(27), i32).reshape(9, 3)
    index[::2, 1] = -1
    want = np.full((27, 64), 77, f32)
    for t in range(9):
        for k in range(3):
            if index[t, k] >= 0:
                want[index[t, k]] = x[t]
    check(build, [x, index], [want], [9, 27])


def test_guard_on_a_global_store_and_alloc_var() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 64), T.float32], limit: T.Tensor[(1,), T.int32], y: T.Tensor[(n, 64), T.float32]):
            with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
                a = T.alloc_fragment((8, 64), T.float32)
                count = T.alloc_var(T.int32)
                T.copy(x[block * 8, 0], a)
                count = 0
                for k in T.serial(4):
                    if k < limit[0]:
                        count = count + 1
                for i, j in T.Parallel(8, 64):
                    if block * 8 + i < n - 2:
                        y[block * 8 + i, j] = a[i, j] + T.cast(count, "float32")
        return kernel

    x = normal(21, 64)
    want = np.full((21, 64), 77, f32)
    want[:19] = x[:19] + f32(3)
    check(build, [x, np.array([3], i32)], [want], [21])


def test_masked_on_chip_store_keeps_the_old_value() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 64), T.float32], y: T.Tensor[(n, 64), T.float32]):
            with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
                a = T.alloc_fragment((8, 64), T.float32)
                T.copy(x[block * 8, 0], a)
                for i, j in T.Parallel(8, 64):
                    if a[i, j] < 0.0:
                        a[i, j] = a[i, j] * a[i, j]
                T.copy(a, y[block * 8, 0])
        return kernel

    x = normal(21, 64)
    check(build, [x], [np.where(x < 0, x * x, x)], [21])


def test_serial_loop_inside_parallel() -> None:
    """Ascending k, column by column of a (tokens, k) tile: strided reads are gathered."""
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 6), T.float32], y: T.Tensor[(n,), T.float32]):
            with T.Kernel(T.ceildiv(n, 16), threads=128) as block:
                a = T.alloc_fragment((16, 6), T.float32)
                total = T.alloc_fragment((16,), T.float32)
                T.copy(x[block * 16, 0], a)
                for t in T.Parallel(16):
                    total[t] = 1e-20
                    for k in T.serial(6):
                        total[t] = total[t] + a[t, k]
                T.copy(total, y[block * 16])
        return kernel

    x = normal(37, 6)
    total = np.full(37, 1e-20, f32)
    for k in range(6):
        total = total + x[:, k]
    check(build, [x], [total], [37])


def test_three_dimensional_grid() -> None:
    def build() -> Any:
        n, m = T.dynamic("n"), T.dynamic("m")

        @T.prim_func
        def kernel(x: T.Tensor[(n, m, 128), T.float32], y: T.Tensor[(n, 128, m), T.float32]):
            with T.Kernel(T.ceildiv(m, 32), 2, n, threads=128) as (bx, by, bz):
                a = T.alloc_shared((32, 64), T.float32)
                b = T.alloc_shared((64, 32), T.float32)
                T.copy(x[bz, bx * 32, by * 64], a)
                for i, j in T.Parallel(32, 64):
                    b[j, i] = a[i, j]
                T.copy(b, y[bz, by * 64, bx * 32])
        return kernel

    x = normal(3, 45, 128)
    check(build, [x], [np.ascontiguousarray(x.transpose(0, 2, 1))], [3, 45])


def test_first_and_middle_axis_broadcast() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 4, 8, 16), T.float32], b: T.Tensor[(4, 16), T.float32],
                   c: T.Tensor[(8, 16), T.float32], d: T.Tensor[(4, 8), T.float32],
                   y: T.Tensor[(n, 4, 8, 16), T.float32]):
            with T.Kernel(n, threads=128) as block:
                a = T.alloc_fragment((4, 8, 16), T.float32)
                bb = T.alloc_fragment((4, 16), T.float32)
                cc = T.alloc_fragment((8, 16), T.float32)
                dd = T.alloc_fragment((4, 8), T.float32)
                T.copy(x[block, 0, 0, 0], a)
                T.copy(b, bb)
                T.copy(c, cc)
                T.copy(d, dd)
                for i, j, k in T.Parallel(4, 8, 16):
                    a[i, j, k] = (a[i, j, k] + bb[i, k]) * cc[j, k] - dd[i, j]
                T.copy(a, y[block, 0, 0, 0])
        return kernel

    x, b, c, d = normal(3, 4, 8, 16), normal(4, 16), normal(8, 16), normal(4, 8)
    check(build, [x, b, c, d], [(x + b[None, :, None]) * c - d[None, :, :, None]], [3])


def test_hazard_reads_the_destination_elsewhere() -> None:
    def build() -> Any:
        n = T.dynamic("n")

        @T.prim_func
        def kernel(x: T.Tensor[(n, 32, 32), T.float32], y: T.Tensor[(n, 32, 32), T.float32]):
            with T.Kernel(n, threads=128) as block:
                a = T.alloc_fragment((32, 32), T.float32)
                T.copy(x[block, 0, 0], a)
                for i, j in T.Parallel(32, 32):
                    a[i, j] = a[i, j] + a[j, i]
                T.copy(a, y[block, 0, 0])
        return kernel

    x = normal(3, 32, 32)
    check(build, [x], [x + x.transpose(0, 2, 1)], [3])


def refused(build: Callable[[], Any]) -> str:
    with pytest.raises(LoweringError) as caught:
        emit(build(), CHIP, "test.case")
    return str(caught.value)


def test_refusals_name_op_statement_and_need() -> None:
    message = refused(elementwise(lambda a: T.tan(a)))
    assert "test.case" in message and "tan" in message and "Ascend910B3" in message
    message = refused(elementwise(lambda a: a // 3, "int32"))
    assert "power of two" in message


def test_casts_to_and_from_float8() -> None:
    """A source may cast by itself: every code, every middle between two, saturation, NaN."""
    import torch

    codes = np.arange(256, dtype=np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    finite = np.sort(values[np.isfinite(values)])
    numbers = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, [1e9, -1e9, np.nan]]).astype(f32)
    x = np.resize(numbers, (8, 128))
    clipped = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    expected = np.where(np.isnan(x), 0x7F, clipped).astype(np.uint8)
    to = elementwise(lambda v: T.cast(v, "float8_e4m3fn"), out="float8_e4m3fn")
    check(to, [x], [expected], [8])
    back = elementwise(lambda v: T.cast(v, "float32"), dtype="float8_e4m3fn", out="float32")
    every = np.resize(codes, (8, 128))
    check(back, [every], [np.resize(values, (8, 128))], [8])


def test_rows_that_may_be_absent_wait_for_their_buffer() -> None:
    """More than two turns a core: a load that is there or not may not overtake the tile two turns before."""
    n, m = T.dynamic("n"), T.dynamic("m")

    def build() -> Any:
        @T.prim_func
        def kernel(x: T.Tensor[(m, 2048), T.float32], index: T.Tensor[(n,), T.int32],
                   y: T.Tensor[(n, 2048), T.float32]):
            with T.Kernel(n, threads=128) as block:
                row = T.alloc_fragment((2048,), T.float32)
                T.copy(x[index[block], 0], row)
                for j in T.Parallel(2048):
                    row[j] = row[j] * 2.0
                T.copy(row, y[block, 0])
        return kernel

    x = normal(7, 2048)
    index = (np.arange(97) * 5 % 9 - 1).astype(i32)   # before the first row, and past the last
    there = (index >= 0) & (index < 7)
    expected = np.where(there[:, None], x[np.clip(index, 0, 6)] * f32(2), f32(0))
    check(build, [x, index], [expected], [7, 97])
