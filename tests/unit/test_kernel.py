"""Kernels, their registry, and what is read from a PrimFunc: signature, symbols, grid."""

import linecache
import subprocess
import sys
from typing import Any

import pytest

from monotile.compat import capability
from monotile.compat import language as T
from monotile.compat.errors import LoweringError, TileTooLarge
from monotile.targets import kernel as kernel_module
from monotile.targets import sizes, tiling
from monotile.targets.backend import ScalarParam, signature
from monotile.targets.kernel import Kernel, find_kernel, kernel, kernels
from monotile.targets.spec import ASCEND_910B, ASCEND_950, CUDA_SM90
from monotile.targets.tiling import Tiling, override_tiling

TILE = Tiling(tokens=8, threads=128)


def _builder(hidden: int, kind: str = "float32", *, tile: Tiling) -> Any:
    n, stride = T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def copy(x: T.StridedTensor[(n, hidden), (stride, 1), kind], y: T.Tensor[(n, hidden), kind]):
        with T.Kernel(T.ceildiv(n, tile.tokens), 2, threads=tile.threads) as (block, _half):
            rows = T.alloc_fragment((tile.tokens, hidden), kind)
            T.copy(x[block * tile.tokens, 0], rows)
            T.copy(rows, y[block * tile.tokens, 0])
    return copy


def _live(tile: Tiling, hidden: int, **_: Any) -> int:
    return 4 * int(tile.tokens) * hidden


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel in a registry of its own."""
    monkeypatch.setattr(kernel_module, "_registry", {})
    monkeypatch.setattr(tiling, "_declared", dict(tiling._declared))
    return kernel("test.copy", tiling=TILE, live_bytes=_live)(_builder)


def test_the_registry_finds_kernels_by_name(registered: Kernel) -> None:
    assert find_kernel("test.copy") is registered and dict(kernels()) == {"test.copy": registered}
    assert registered.params == ("hidden", "kind") and registered.op == "test.copy"
    with pytest.raises(ValueError, match=r"no kernel 'test.paste'; the kernels are test.copy"):
        find_kernel("test.paste")
    with pytest.raises(ValueError, match="registered twice"):
        kernel("test.copy", tiling=TILE, live_bytes=_live)(_builder)


def test_listing_the_registry_imports_no_tilelang() -> None:
    code = ("import sys, monotile; from monotile.targets.kernel import kernels; print(len(kernels())); "
            "sys.exit('tilelang' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tile_that_does_not_fit_is_refused_before_anything_is_traced(registered: Kernel) -> None:
    limit = ASCEND_910B.on_chip_bytes
    fits = limit // (4 * 8)
    assert registered.tile_for(ASCEND_910B, {"hidden": fits}) == TILE
    with pytest.raises(TileTooLarge) as caught:
        registered.tile_for(ASCEND_910B, {"hidden": fits + 1})
    for word in ("test.copy", "tokens=8", str(limit + 32), str(limit), "ascend-910b"):
        assert word in str(caught.value)
    with override_tiling("test.copy", tokens=4):   # what the message advises
        assert registered.tile_for(ASCEND_910B, {"hidden": fits + 1})["tokens"] == 4
    assert registered.tile_for(ASCEND_950, {"hidden": fits + 1}) == TILE


def test_a_trace_sees_the_targets_casts_and_nothing_else(registered: Kernel) -> None:
    seen = []

    def looking(*, tile: Tiling) -> Any:
        seen.append((capability.has("e4m3"), capability.has("e2m1")))
        return None

    looker = Kernel("test.look", looking, TILE, lambda tile: 0)
    for target in (CUDA_SM90, ASCEND_910B):
        looker.trace(target, TILE, {})
    assert seen == [(True, False), (False, False)]
    with pytest.raises(RuntimeError, match="outside of a trace"):
        capability.has("e4m3")


def test_two_targets_trace_the_same_function(registered: Kernel) -> None:
    from tilelang import tvm

    one, two = (registered.trace(t, TILE, {"hidden": 64}) for t in (CUDA_SM90, ASCEND_910B))
    tvm.ir.assert_structural_equal(one, two, map_free_vars=True)


def test_an_error_of_the_front_end_names_kernel_statement_and_line(capfd: pytest.CaptureFixture[str]) -> None:
    def wrong(*, tile: Tiling) -> Any:
        @T.prim_func
        def kernel(x: T.Tensor[(8,), T.float32]):
            with T.Kernel(8, threads=32) as i:
                rows = T.alloc_fragment((8,), T.float32)
                T.reduce_sum(rows, x, dim=7)
                x[i] = 1.0
        return kernel

    with pytest.raises(LoweringError, match=r"test.wrong on ascend-910b: trace failed: ValueError") as caught:
        Kernel("test.wrong", wrong, TILE, lambda tile: 0).trace(ASCEND_910B, TILE, {})
    assert caught.value.statement == "T.reduce_sum(rows, x, dim=7)"
    name, line = str(caught.value.line).rsplit(":", 1)
    assert name == __file__ and "T.reduce_sum" in linecache.getline(name, int(line))
    assert "make_closure" not in "".join(capfd.readouterr()), "TileLang's dump reached the user"


def test_a_missing_parameter_is_named(registered: Kernel) -> None:
    with pytest.raises(LoweringError, match=r"test.copy on ascend-910b: trace failed: TypeError.*hidden"):
        registered.trace(ASCEND_910B, TILE, {})


def test_signature_lists_tensors_and_symbols_in_order_of_first_use(registered: Kernel) -> None:
    tensors, scalars = signature(registered.trace(ASCEND_910B, TILE, {"hidden": 64, "kind": "bfloat16"}))
    assert [(t.name, t.dtype, t.shape, t.strides) for t in tensors] == [
        ("x", "bfloat16", ("n", 64), ("stride", 1)), ("y", "bfloat16", ("n", 64), (64, 1))]
    assert scalars == (ScalarParam("n", 0, "shape", 0), ScalarParam("stride", 0, "stride", 0))


def test_signature_of_derived_sizes() -> None:
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def func(x: T.Tensor[(n, m * 2), T.int8], y: T.Tensor[(2, m, n), T.int8]):
        with T.Kernel(T.ceildiv(m, 64), n, threads=32) as (i, j):
            y[0, i, j] = x[j, i]

    tensors, scalars = signature(func)
    values = (5, 7)
    assert [s.name for s in scalars] == ["n", "m"]
    assert sizes.evaluator(tensors[0].shape, ["n", "m"])(*values) == (5, 14)
    assert sizes.evaluator(tensors[0].strides, ["n", "m"])(*values) == (14, 1)
    assert sizes.evaluator(tensors[1].strides, ["n", "m"])(*values) == (35, 5, 1)
    assert sizes.evaluator(sizes.grid(func), ["n", "m"])(*values) == (1, 5)


def test_signature_refuses_what_cannot_be_bound() -> None:
    n, twin, m = T.dynamic("n"), T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def twins(x: T.Tensor[(n,), T.float32], y: T.Tensor[(twin,), T.float32]):
        with T.Kernel(n, threads=32) as i:
            y[i] = x[i]

    @T.prim_func
    def hidden(x: T.Tensor[(n, m * 2), T.float32]):
        with T.Kernel(n, threads=32) as i:
            x[i, 0] = 1.0

    @T.prim_func
    def number(x: T.Tensor[(8,), T.float32], scale: T.float32):
        with T.Kernel(8, threads=32) as i:
            x[i] = scale

    with pytest.raises(ValueError, match="two symbols 'n'"):
        signature(twins)
    with pytest.raises(ValueError, match=r"of x has a symbol that no tensor gives alone"):
        signature(hidden)
    with pytest.raises(ValueError, match="scale is no tensor"):
        signature(number)


def test_expressions_compute_what_tir_means() -> None:
    from tilelang import tvm

    tirx = tvm.tirx
    n, wide = tirx.Var("n", "int32"), tirx.Var("wide", "int64")
    written = [
        T.ceildiv(n, 8), T.max(n - 100, 1) * 3, T.min(n % 7, n // 2), tirx.Cast("int64", n) + wide, 5,
        T.truncdiv(n, 4) + T.truncmod(n, 4)]
    compute = sizes.evaluator([sizes.expression(e) for e in written], ["n", "wide"])
    for value in (0, 1, 7, 8, 9, 4001):
        assert compute(value, 2**40) == (
            -(-value // 8), max(value - 100, 1) * 3, min(value % 7, value // 2), value + 2**40, 5,
            value // 4 + value % 4)
    with pytest.raises(ValueError, match="no sum, product"):
        sizes.expression(tirx.Cast("float32", n) * 0.5)


@pytest.mark.parametrize("text", ["n.__class__", "__import__('os')", "m + 1", "[n]", "n if n else 1", "n; n"])
def test_evaluator_takes_only_sums_of_its_symbols(text: str) -> None:
    with pytest.raises(ValueError, match="must be made of n"):
        sizes.evaluator([text], ["n"])


def test_a_kernel_has_one_grid() -> None:
    @T.prim_func
    def two(x: T.Tensor[(8,), T.float32]):
        with T.Kernel(8, threads=32) as i:
            x[i] = 1.0
        with T.Kernel(4, threads=32) as i:
            x[i] = 2.0

    with pytest.raises(ValueError, match=r"exactly one T.Kernel, this one has 2"):
        sizes.grid(two)
