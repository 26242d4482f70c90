"""AscendC for the 950: small kernels from source to the emulator, in every mode; what the lint and the checks catch."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monotile.compat import language as T
from monotile.compat.errors import LoweringError, ToolchainMissing
from monotile.targets.ascendc import bisheng, lint
from monotile.targets.ascendc.emulator import host
from monotile.targets.ascendc.emulator.host import AscendcFault, Program
from monotile.targets.ascendc.legalise import MODES
from monotile.targets.ascendc.lowering import MODE_VARIABLE, Text, lower_to_text
from monotile.targets.spec import ASCEND_910B, ASCEND_950

f32, i32 = np.float32, np.int32


def lowered(func: Any) -> Text:
    return lower_to_text(func, ASCEND_950, "test.case")


def execute(text: str, folder: Path, tensors: dict[str, np.ndarray], numbers: dict[str, int],
            blocks: int = 56) -> host.Moved:
    folder.mkdir(exist_ok=True)
    host.build(text, ASCEND_950.ub_bytes, folder, "test.case", "ascend-950", "checked")
    flat = {name: array.reshape(-1) for name, array in tensors.items()}
    return Program(folder, text, "test.case").run(flat, numbers, blocks, checked=True)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


# ---------------------------------------------------------------------- rules
def scaled(rows: int = 8, columns: int = 128) -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, columns), T.float32], y: T.Tensor[(n, columns), T.float32]):
        with T.Kernel(T.ceildiv(n, rows), threads=128) as block:
            tile = T.alloc_fragment((rows, columns), T.float32)
            T.copy(x[block * rows, 0], tile)
            for i, j in T.Parallel(rows, columns):
                tile[i, j] = tile[i, j] * 2.0 + 1.0
            T.copy(tile, y[block * rows, 0])
    return kernel


def ragged_columns() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 200), T.float32], y: T.Tensor[(n, 200), T.float32]):
        with T.Kernel(T.ceildiv(n, 4), 2, threads=128) as (by, bx):
            tile = T.alloc_fragment((4, 128), T.float32)
            T.copy(x[by * 4, bx * 128], tile)
            for i, j in T.Parallel(4, 128):
                tile[i, j] = -tile[i, j]
            T.copy(tile, y[by * 4, bx * 128])
    return kernel


def row_sums() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 256), T.float32], y: T.Tensor[(n,), T.float32]):
        with T.Kernel(T.ceildiv(n, 8), threads=128) as block:
            tile = T.alloc_fragment((8, 256), T.float32)
            total = T.alloc_fragment((8,), T.float32)
            T.copy(x[block * 8, 0], tile)
            T.reduce_max(tile, total, dim=1)
            for i in T.Parallel(8):
                if block * 8 + i < n:
                    y[block * 8 + i] = total[i]
    return kernel


def gathered() -> Any:
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def kernel(x: T.Tensor[(m, 64), T.float32], index: T.Tensor[(n,), T.int32], y: T.Tensor[(n, 64), T.float32]):
        with T.Kernel(T.ceildiv(n, 4), threads=64) as block:
            tile = T.alloc_fragment((4, 64), T.float32)
            for i, j in T.Parallel(4, 64):
                tile[i, j] = 0.0
                if block * 4 + i < n:
                    if index[block * 4 + i] >= 0:
                        tile[i, j] = x[index[block * 4 + i], j]
            T.copy(tile, y[block * 4, 0])
    return kernel


def transposed() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 64), T.float32], y: T.Tensor[(64, n), T.float32]):
        with T.Kernel(T.ceildiv(n, 32), threads=128) as block:
            tile = T.alloc_shared((32, 64), T.float32)
            turned = T.alloc_fragment((64, 32), T.float32)
            T.copy(x[block * 32, 0], tile)
            for j, i in T.Parallel(64, 32):
                turned[j, i] = tile[i, j]
            T.copy(turned, y[0, block * 32])
    return kernel


def running_maximum() -> Any:
    """A loop of loads whose registers carry over: they are kept in UB between two functions."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 5, 128), T.float32], y: T.Tensor[(n, 128), T.float32]):
        with T.Kernel(n, threads=128) as block:
            best = T.alloc_fragment((128,), T.float32)
            row = T.alloc_fragment((128,), T.float32)
            T.fill(best, -1e30)
            for k in T.serial(5):
                T.copy(x[block, k, 0], row)
                for j in T.Parallel(128):
                    best[j] = T.max(best[j], row[j])
            T.copy(best, y[block, 0])
    return kernel


def grid_of_three() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 3, 128), T.int32], y: T.Tensor[(n, 3, 128), T.int32]):
        with T.Kernel(2, 3, n, threads=64) as (i, j, k):
            tile = T.alloc_shared((64,), T.int32)
            T.copy(x[k, j, i * 64], tile)
            for c in T.Parallel(64):
                tile[c] = tile[c] + 100 * i + 10 * j + k
            T.copy(tile, y[k, j, i * 64])
    return kernel


def _index(n: int) -> np.ndarray:
    index = np.random.default_rng(1).integers(-1, 7, n).astype(i32)
    index[0] = -1
    return index


N = 77
RULES: dict[str, tuple[Callable[[], Any], dict[str, np.ndarray], Callable[..., np.ndarray]]] = {
    "tail": (scaled, {"x": normal(N, 128)}, lambda x: x * f32(2) + f32(1)),
    "ragged columns": (ragged_columns, {"x": normal(N, 200)}, lambda x: -x),
    "reduction": (row_sums, {"x": normal(N, 256)}, lambda x: x.max(1)),
    "gather": (gathered, {"x": normal(7, 64), "index": _index(N)},
               lambda x, index: np.where(index[:, None] >= 0, x[index], f32(0))),
    "transpose": (transposed, {"x": normal(N, 64)}, lambda x: np.ascontiguousarray(x.T)),
    "carried registers": (running_maximum, {"x": normal(N, 5, 128)}, lambda x: x.max(1)),
    "grid of three": (grid_of_three, {"x": np.arange(N * 3 * 128, dtype=i32).reshape(N, 3, 128)},
                      lambda x: x + 100 * (np.arange(128) // 64).astype(i32)
                      + 10 * np.arange(3, dtype=i32)[:, None] + np.arange(N, dtype=i32)[:, None, None]),
}


def test_each_byte_is_moved_once(tmp_path: Path) -> None:
    x, y = normal(N, 128), np.zeros((N, 128), f32)
    moved = execute(lowered(scaled()).text, tmp_path, {"x": x, "y": y}, {"n": N})
    assert (moved.loaded, moved.stored) == (x.nbytes, y.nbytes)


def test_copies_alone_need_no_registers() -> None:
    """What is only loaded and stored stays in UB."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 128), T.float32], y: T.Tensor[(n, 128), T.float32]):
        with T.Kernel(n, threads=128) as block:
            row = T.alloc_fragment((128,), T.float32)
            T.copy(x[block, 0], row)
            T.copy(row, y[block, 0])

    assert lowered(kernel).regions == ()


def test_a_tile_that_ub_cannot_hold_is_refused() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 65536), T.float32], y: T.Tensor[(n, 65536), T.float32]):
        with T.Kernel(n, threads=128) as block:
            tile = T.alloc_shared((65536,), T.float32)
            T.copy(x[block, 0], tile)
            T.copy(tile, y[block, 0])

    with pytest.raises(LoweringError, match="its buffers take 262144 bytes of UB"):
        lowered(kernel)


def test_operators_of_the_cube_unit_are_refused_by_name() -> None:
    @T.prim_func
    def kernel(x: T.Tensor[(64, 64), T.float16], y: T.Tensor[(64, 64), T.float32]):
        with T.Kernel(1, threads=128) as block:
            tile = T.alloc_shared((64, 64), T.float16)
            product = T.alloc_fragment((64, 64), T.float32)
            T.clear(product)
            T.copy(x[block * 64, 0], tile)
            T.gemm(tile, tile, product, transpose_B=True)
            T.copy(product, y[block * 64, 0])

    with pytest.raises(LoweringError, match=r"tile operator gemm is not lowered(.|\n)*T.gemm\(tile, tile, product"):
        lowered(kernel)


def test_unknown_modes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "fast")
    with pytest.raises(ValueError, match="must be one of simd, dma, simt, got 'fast'"):
        lowered(scaled())


# ---------------------------------------------------------------------- lint
@pytest.mark.parametrize("size,threads,wrong", [(64, 128, True), (128, 128, False), (32, 128, False), (16, 64, False),
                                                (64, 256, True)])
def test_lint_finds_reductions_over_part_of_a_block(size: int, threads: int, wrong: bool) -> None:
    text = (f"__simt_vf__ __launch_bounds__({threads}) inline void f() {{ x = tl::AscendAllReduce<tl::MaxOp, {size}, "
            "1, 0>::run(x, b); }")
    assert bool(lint.faults(text)) is wrong


def test_reductions_that_lint_refuses_get_fewer_threads(tmp_path: Path) -> None:
    """Two groups of 64 threads in a block of 128 would share one scratch buffer."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 2, 64), T.float32], y: T.Tensor[(n, 2), T.float32]):
        with T.Kernel(n, threads=128) as block:
            tile = T.alloc_fragment((2, 64), T.float32)
            total = T.alloc_fragment((2,), T.float32)
            for i, j in T.Parallel(2, 64):
                tile[i, j] = x[block, i, j]
            T.reduce_max(tile, total, dim=1)
            for i in T.Parallel(2):
                y[block, i] = total[i]

    made = lowered(kernel)
    assert not lint.faults(made.text)
    x, y = normal(9, 2, 64), np.zeros((9, 2), f32)
    execute(made.text, tmp_path, {"x": x, "y": y}, {"n": 9})
    np.testing.assert_array_equal(y, x.max(2))


# ---------------------------------------------------------------------- what the emulator catches
def without(text: str, pattern: str, replacement: str = "", count: int = 1) -> str:
    changed, number = re.subn(pattern, replacement, text, count=count)
    assert number, pattern
    return changed


MUTATIONS = {
    "a wait that is missing": (r"asc_sync_wait\(PIPE_MTE2, PIPE_V, [^;]*;", "", "barrier or flag"),
    "a flag that is missing": (r"asc_sync_notify\(PIPE_MTE2, PIPE_V, [^;]*;", "", "never set"),
    "a load that is too long": (r"min\(8, max\(", "max(8, max(", "DMA from byte|beyond its end"),
    "a tail that nobody zeroes": (r"\(n < ", "(false && n < ", "nobody wrote"),
    "UB at an odd address": (r"(vlds_norm<float>\([^[]*\[)", r"\g<1>1 + ", "no multiple of 32"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_caught(name: str, tmp_path: Path) -> None:
    pattern, replacement, words = MUTATIONS[name]
    text = lowered(scaled()).text
    n = 8 * 56 * 2 + 3
    x, y = normal(n, 128), np.zeros((n, 128), f32)
    execute(text, tmp_path / "right", {"x": x, "y": y}, {"n": n})
    np.testing.assert_array_equal(y, x * f32(2) + f32(1))
    with pytest.raises(AscendcFault, match=words):
        execute(without(text, pattern, replacement), tmp_path / "wrong", {"x": x, "y": y}, {"n": n})


def test_two_blocks_at_one_byte(tmp_path: Path) -> None:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 64), T.float32], y: T.Tensor[(64,), T.float32]):
        with T.Kernel(n, threads=64) as block:
            row = T.alloc_fragment((64,), T.float32)
            T.copy(x[block, 0], row)
            T.copy(row, y[0])

    with pytest.raises(AscendcFault, match="two blocks write byte 0"):
        execute(lowered(kernel).text, tmp_path, {"x": normal(3, 64), "y": np.zeros(64, f32)}, {"n": 3})


def turned_about() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 128), T.float32], y: T.Tensor[(n, 128), T.float32]):
        with T.Kernel(n, threads=128) as block:
            row = T.alloc_shared((128,), T.float32)
            turned = T.alloc_shared((128,), T.float32)
            T.copy(x[block, 0], row)
            for j in T.Parallel(128):
                turned[j] = row[j] * 2.0
            for j in T.Parallel(128):
                row[j] = turned[127 - j]
            T.copy(row, y[block, 0])
    return kernel


@pytest.mark.parametrize("mode,barrier,words", [
    ("simd", r"simd_inst::mem_bar\(\w+\);", "without a barrier"),
    ("dma", r"asc_syncthreads\(\);", "nobody wrote|order in which threads run")])
def test_missing_barriers_are_caught(mode: str, barrier: str, words: str, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Between vector registers by what is pending, between threads by the order in which they run."""
    monkeypatch.setenv(MODE_VARIABLE, mode)
    text = lowered(turned_about()).text
    x, y = normal(3, 128), np.zeros((3, 128), f32)
    execute(text, tmp_path / "right", {"x": x, "y": y}, {"n": 3})
    np.testing.assert_array_equal(y, x[:, ::-1] * f32(2))
    with pytest.raises(AscendcFault, match=words):
        execute(without(text, barrier, count=0), tmp_path / "wrong", {"x": x, "y": y}, {"n": 3})


# ---------------------------------------------------------------------- compilers
def test_bisheng_builds_for_the_950_and_nothing_else() -> None:
    compiles, links = bisheng.commands("bisheng", "ld.lld", Path("k.cpp"), Path("k.aibin"), ASCEND_950, [Path("inc")])
    assert compiles == ["bisheng", "-x", "asc", "-O2", "-fPIC", "-std=c++20", "-mllvm",
                        "-cce-aicore-dcpreload-args=false", "--npu-arch=dav-3510", "-Iinc", "--cce-aicore-only",
                        "k.cpp", "-o", "k.rel.o"]
    assert links == ["ld.lld", "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", "k.rel.o", "-o", "k.aibin"]
    with pytest.raises(KeyError):
        bisheng.commands("bisheng", "ld.lld", Path("k.cpp"), Path("k.aibin"), ASCEND_910B, [])


def test_a_compiler_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    host.compiler.cache_clear()
    with pytest.raises(ToolchainMissing, match=r"needs a C\+\+20 compiler"):
        host.compiler()
    host.compiler.cache_clear()


def test_bisheng_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that records its arguments, and one that refuses."""
    fake, link = tmp_path / "bisheng", tmp_path / "ld.lld"
    fake.write_text('#!/bin/sh\nfor last; do :; done\necho "$@" > "$last"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(bisheng, "linker", lambda: None)
    with pytest.raises(ToolchainMissing, match=r"bisheng is installed without CANN's ld\.lld"):
        bisheng.build(tmp_path / "k.cpp", tmp_path / "k.aibin", ASCEND_950, "test.case")
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    link.write_text('#!/bin/sh\nwhile [ "$1" != --no-mmap-output-file ]; do shift; done\ncp "$2" "$4"\n')
    link.chmod(0o755)
    assert bisheng.linker() == str(link)
    assert bisheng.build(tmp_path / "k.cpp", tmp_path / "k.aibin", ASCEND_950, "test.case")
    assert "--npu-arch=dav-3510" in (tmp_path / "k.aibin").read_text()
    assert not (tmp_path / "k.rel.o").exists()
    link.write_text('#!/bin/sh\necho "ld.lld: error: undefined symbol: f" >&2\nexit 1\n')
    with pytest.raises(LoweringError, match=r"link failed: ld\.lld: ld\.lld: error: undefined symbol: f"):
        bisheng.build(tmp_path / "k.cpp", tmp_path / "k.aibin", ASCEND_950, "test.case")
    fake.write_text('#!/bin/sh\necho "k.cpp:3: error: no such type" >&2\nexit 1\n')
    with pytest.raises(LoweringError, match=r"accept failed: bisheng: k\.cpp:3: error: no such type"):
        bisheng.build(tmp_path / "k.cpp", tmp_path / "k.aibin", ASCEND_950, "test.case")


def written_twice() -> Any:
    """One place written twice in a turn, and a second time where a condition holds."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 128), T.float32], y: T.Tensor[(n, 128), T.float32]):
        with T.Kernel(n, threads=128) as block:
            row = T.alloc_fragment((128, 1), T.float32)
            out = T.alloc_fragment((128, 1), T.float32)
            for j, one in T.Parallel(128, 1):
                row[j, one] = x[block, j]
            for j, one in T.Parallel(128, 1):
                out[j, one] = row[j, one] * 2.0
                out[j, one] = out[j, one] + 1.0
                if row[j, one] > 0.0:
                    out[j, one] = -row[j, one]
            for j, one in T.Parallel(128, 1):
                y[block, j] = out[j, one]
    return kernel


def halves() -> Any:
    """Every second of 16-bit numbers, packed: loads at steps of two, integers of 16 and 8 bits."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 256), T.int16], y: T.Tensor[(n, 128), T.int8]):
        with T.Kernel(n, threads=128) as block:
            row = T.alloc_shared((256,), T.int16)
            out = T.alloc_shared((128,), T.int8)
            T.copy(x[block, 0], row)
            for j in T.Parallel(128):
                out[j] = T.cast((row[2 * j] & 15) | (row[2 * j + 1] << 4), "int8")
            T.copy(out, y[block, 0])
    return kernel


def spread_by_division() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 16), T.float32], y: T.Tensor[(n, 128), T.float32]):
        with T.Kernel(n, threads=128) as block:
            row = T.alloc_shared((16,), T.float32)
            out = T.alloc_shared((128,), T.float32)
            T.copy(x[block, 0], row)
            for j in T.Parallel(128):
                out[j] = row[j // 8] * 3.0
            T.copy(out, y[block, 0])
    return kernel


_SHORTS = np.random.default_rng(5).integers(-32768, 32768, (N, 256)).astype(np.int16)
RULES.update({
    "one place written twice": (written_twice, {"x": normal(N, 128)},
                                lambda x: np.where(x > 0, -x, x * f32(2) + f32(1))),
    "halves of words": (halves, {"x": _SHORTS},
                        lambda x: ((x[:, ::2] & 15) | (x[:, 1::2].astype(i32) << 4)).astype(np.int8)),
    "an index divided": (spread_by_division, {"x": normal(N, 16)}, lambda x: np.repeat(x, 8, 1) * f32(3)),
})


# ---------------------------------------------------------------------- what reaches global memory by DMA
def turned_matrices(tokens: int = 8) -> Any:
    """Rows of 12 bytes, tokens innermost on chip: nests read and write a box of global memory."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 3), T.float32], y: T.Tensor[(n, 3), T.float32]):
        with T.Kernel(T.ceildiv(n, tokens), threads=32) as block:
            turned = T.alloc_fragment((3, tokens), T.float32)
            for c, t in T.Parallel(3, tokens):
                turned[c, t] = x[block * tokens + t, c]
            for c, t in T.Parallel(3, tokens):
                y[block * tokens + t, c] = turned[c, t] * 2.0
    return kernel


def padded_rows() -> Any:
    """A nest whose box leaves the tensor on the right: what lies outside reads as zero."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 72), T.float32], y: T.Tensor[(n, 96), T.float32]):
        with T.Kernel(n, threads=32) as block:
            row = T.alloc_fragment((96, 1), T.float32)
            for e, t in T.Parallel(96, 1):
                row[e, t] = x[block + t, e]
            for e, t in T.Parallel(96, 1):
                y[block + t, e] = row[e, t] + 1.0
    return kernel


def short_rows() -> Any:
    """Rows of 16 bytes of a matrix a token, copied whole."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 4, 4), T.float32], y: T.Tensor[(n, 4, 4), T.float32]):
        with T.Kernel(T.ceildiv(n, 4), threads=32) as block:
            tile = T.alloc_shared((4, 4, 4), T.float32)
            T.copy(x[block * 4, 0, 0], tile)
            for t, i, j in T.Parallel(4, 4, 4):
                tile[t, i, j] = tile[t, i, j] - 1.0
            T.copy(tile, y[block * 4, 0, 0])
    return kernel


MANY = 200   # rows: more than three turns a core, so that a slot of UB is loaded anew while others are at work
BOXES: dict[str, tuple[Callable[[], Any], dict[str, np.ndarray], Callable[..., np.ndarray]]] = {
    "a nest over short rows": (turned_matrices, {"x": normal(MANY, 3)}, lambda x: x * f32(2)),
    "a nest over the edge": (padded_rows, {"x": normal(MANY, 72)}, lambda x: np.pad(x, ((0, 0), (0, 24))) + f32(1)),
    "a copy of short rows": (short_rows, {"x": normal(MANY, 4, 4)}, lambda x: x - f32(1)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_global_memory_are_moved_by_dma(name: str, mode: str, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    build, inputs, expected = BOXES[name]
    want = expected(**inputs)
    out = np.full_like(want, 77)
    monkeypatch.setenv(MODE_VARIABLE, mode)
    moved = execute(lowered(build()).text, tmp_path, {**inputs, "y": out}, {"n": MANY})
    np.testing.assert_array_equal(out, want)
    if mode != "simt":
        assert (moved.loaded, moved.stored) == (inputs["x"].nbytes, want.nbytes)
        assert (moved.thread_loaded, moved.thread_stored) == (0, 0)


# ---------------------------------------------------------------------- the patterns of the hot kernels
HIDDEN, MULT = 128, 4


def swiglu() -> Any:
    """A row's halves, gated; the sigmoid's exponential is in the nest."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, 2 * HIDDEN), T.bfloat16], w: T.Tensor[(n,), T.float32],
               y: T.Tensor[(n, HIDDEN), T.float32]):
        with T.Kernel(T.ceildiv(n, 4), threads=128) as block:
            left = T.alloc_fragment((4, HIDDEN), T.bfloat16)
            right = T.alloc_fragment((4, HIDDEN), T.bfloat16)
            weight = T.alloc_shared((4,), T.float32)
            act = T.alloc_fragment((4, HIDDEN), T.float32)
            T.copy(x[block * 4, 0], left)
            T.copy(x[block * 4, HIDDEN], right)
            T.copy(w[block * 4], weight)
            for t, c in T.Parallel(4, HIDDEN):
                gate = T.cast(left[t, c], "float32")
                act[t, c] = gate / (1.0 + T.exp(-gate)) * T.cast(right[t, c], "float32") * weight[t]
            T.copy(act, y[block * 4, 0])
    return kernel


def apply_mix() -> Any:
    """A sum over the streams of a token, each under its own factor."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, MULT, HIDDEN), T.bfloat16], mix: T.Tensor[(n, MULT), T.float32],
               y: T.Tensor[(n, HIDDEN), T.float32]):
        with T.Kernel(n, threads=128) as token:
            streams = T.alloc_shared((MULT, HIDDEN), T.bfloat16)
            factor = T.alloc_shared((MULT,), T.float32)
            total = T.alloc_fragment((HIDDEN,), T.float32)
            T.copy(x[token, 0, 0], streams)
            T.copy(mix[token, 0], factor)
            T.fill(total, 0.0)
            for m in T.serial(MULT):
                for c in T.Parallel(HIDDEN):
                    total[c] = total[c] + factor[m] * T.cast(streams[m, c], "float32")
            T.copy(total, y[token, 0])
    return kernel


def post() -> Any:
    """Every stream from all of them, and from the layer's output."""
    n = T.dynamic("n")

    @T.prim_func
    def kernel(x: T.Tensor[(n, HIDDEN), T.bfloat16], res: T.Tensor[(n, MULT, HIDDEN), T.bfloat16],
               mix: T.Tensor[(n, MULT), T.float32], comb: T.Tensor[(n, MULT, MULT), T.float32],
               y: T.Tensor[(n, MULT, HIDDEN), T.float32]):
        with T.Kernel(n, threads=128) as token:
            row = T.alloc_shared((HIDDEN,), T.bfloat16)
            streams = T.alloc_shared((MULT, HIDDEN), T.bfloat16)
            factor = T.alloc_shared((MULT,), T.float32)
            mixing = T.alloc_shared((MULT, MULT), T.float32)
            out = T.alloc_fragment((MULT, HIDDEN), T.float32)
            T.copy(x[token, 0], row)
            T.copy(res[token, 0, 0], streams)
            T.copy(mix[token, 0], factor)
            T.copy(comb[token, 0, 0], mixing)
            for o, c in T.Parallel(MULT, HIDDEN):
                out[o, c] = factor[o] * T.cast(row[c], "float32")
            for i in T.serial(MULT):
                for o, c in T.Parallel(MULT, HIDDEN):
                    out[o, c] = out[o, c] + mixing[i, o] * T.cast(streams[i, c], "float32")
            T.copy(out, y[token, 0, 0])
    return kernel


def _bfloat16(*shape: int, seed: int = 0) -> np.ndarray:
    return (normal(*shape, seed=seed).view(np.uint32) >> 16).astype(np.uint16)


def _float64(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(f32).astype(np.float64) if x.dtype == np.uint16 else x.astype(np.float64)


def _gated(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    left, right = np.split(_float64(x), 2, axis=1)
    return left / (1 + np.exp(-left)) * right * _float64(w)[:, None]


PATTERNS: dict[str, tuple[Callable[[], Any], dict[str, np.ndarray], Callable[..., np.ndarray]]] = {
    "swiglu": (swiglu, {"x": _bfloat16(N, 2 * HIDDEN), "w": normal(N, seed=1)}, _gated),
    "apply_mix": (apply_mix, {"x": _bfloat16(N, MULT, HIDDEN), "mix": normal(N, MULT, seed=1)},
                  lambda x, mix: np.einsum("nmc,nm->nc", _float64(x), _float64(mix))),
    "post": (post, {"x": _bfloat16(N, HIDDEN), "res": _bfloat16(N, MULT, HIDDEN, seed=1),
                    "mix": normal(N, MULT, seed=2), "comb": normal(N, MULT, MULT, seed=3)},
             lambda x, res, mix, comb: np.einsum("no,nc->noc", _float64(mix), _float64(x))
             + np.einsum("nio,nic->noc", _float64(comb), _float64(res))),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_hot_patterns_come_out_as_simd_and_mean_the_same_in_every_mode(
        name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, inputs, expected = PATTERNS[name]
    want = expected(**inputs)
    results = []
    for mode in MODES:
        monkeypatch.setenv(MODE_VARIABLE, mode)
        made = lowered(build())
        if mode == "simd":
            assert made.regions and all(region.startswith("SIMD") for region in made.regions), made.regions
        out = np.full(want.shape, 77, f32)
        execute(made.text, tmp_path / mode, {**inputs, "y": out}, {"n": N})
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
        results.append(out.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", RULES)
def test_rules_in_every_mode(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, inputs, expected = RULES[name]
    want = expected(**inputs)
    for mode in MODES:
        monkeypatch.setenv(MODE_VARIABLE, mode)
        out = np.full_like(want, 77)
        execute(lowered(build()).text, tmp_path / mode, {**inputs, "y": out}, {"n": N, "m": 7})
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("build", [scaled, halves, spread_by_division, running_maximum, turned_about])
def test_these_come_out_as_simd(build: Callable[[], Any]) -> None:
    assert all(region.startswith("SIMD") for region in lowered(build()).regions)


def test_two_buffers_of_one_shape_are_two() -> None:
    """Structural equality takes one for the other."""
    text = lowered(running_maximum()).text
    assert re.search(r"vmax\((\w+), (?!\1)\w+,", text)
