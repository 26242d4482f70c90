"""The cuda backend without a GPU: the text, what nvcc makes of it, and the calls that the driver would get."""

import ctypes
import json
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monotile.compat import language as T
from monotile.compat.errors import LoweringError, ToolchainMissing
from monotile.targets.build import build, compile_artifact, lower
from monotile.targets.cuda import backend as cuda_backend
from monotile.targets.cuda import driver, nvcc
from monotile.targets.cuda.driver import CudaError, Function
from monotile.targets.cuda.lowering import launch_of, lower_to_text
from monotile.targets.kernel import Kernel
from monotile.targets.launch import Loaded
from monotile.targets.spec import CUDA_SM90
from monotile.targets.tiling import Tiling

TILE = Tiling(tokens=4, threads=128)


def _kernel(builder: Any) -> Kernel:
    return Kernel(f"test.{builder.__name__}", builder, TILE, lambda tile, **_: 0)


def cast(hidden: int, *, tile: Tiling) -> Any:
    """Rows with a stride, a reduction, e4m3: what per-token casts are made of."""
    n, stride = T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def cast_rows(
        q: T.Tensor[(n, hidden), T.float8_e4m3fn],
        x: T.StridedTensor[(n, hidden), (stride, 1), T.bfloat16],
        amax: T.Tensor[(n,), T.float32],
    ):
        with T.Kernel(T.ceildiv(n, tile.tokens), threads=tile.threads) as block:
            rows = T.alloc_fragment((tile.tokens, hidden), T.float32)
            largest = T.alloc_fragment((tile.tokens,), T.float32)
            T.copy(x[block * tile.tokens, 0], rows)
            T.reduce_absmax(rows, largest, dim=1)
            T.copy(rows, q[block * tile.tokens, 0])
            T.copy(largest, amax[block * tile.tokens])
    return cast_rows


def gather(hidden: int, *, tile: Tiling) -> Any:
    """Row indices from memory, in a grid of three."""
    n, m, batches = T.dynamic("n"), T.dynamic("m"), T.dynamic("batches")

    @T.prim_func
    def gather_rows(
        x: T.Tensor[(batches, n, hidden), T.float32],
        index: T.Tensor[(m,), T.int32],
        y: T.Tensor[(batches, m, hidden), T.float32],
    ):
        with T.Kernel(m, batches, threads=tile.threads) as (row, batch):
            source = T.alloc_var(T.int32)
            source = index[row]
            for j in T.Parallel(hidden):
                if source >= 0:
                    y[batch, row, j] = x[batch, source, j]
                else:
                    y[batch, row, j] = 0.0
    return gather_rows


def staged(columns: int, *, tile: Tiling) -> Any:
    """A square shared tile, read transposed; nothing static but the tile."""
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def transpose(x: T.Tensor[(n, m), T.float32], y: T.Tensor[(m, n), T.float32]):
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, columns), threads=tile.threads) as (i, j):
            square = T.alloc_shared((columns, columns), T.float32)
            T.copy(x[i * columns, j * columns], square)
            for a, b in T.Parallel(columns, columns):
                if j * columns + a < m and i * columns + b < n:
                    y[j * columns + a, i * columns + b] = square[b, a]
    return transpose


def _lowered(builder: Any, vectors: bool = True, **params: Any) -> Any:
    func = _kernel(builder).trace(CUDA_SM90, TILE, params)
    return lower_to_text(func, CUDA_SM90, "test.op", vectors)


# ---------------------------------------------------------------------- text
def test_the_text_says_how_it_is_launched() -> None:
    source = _lowered(cast, hidden=512)
    launch = launch_of(source.text)
    assert launch.kernel == source.name and f"{source.name}(" in source.text
    assert launch.grid == ("((n + 3) // 4)",) and launch.block == (128, 1, 1)
    declared = re.search(rf"__global__ void {launch.kernel}\((.*)\);", source.text)
    assert declared is not None
    names = [argument.split()[-1] for argument in declared[1].split(",")]
    want = {"tensor": [t.name for t in source.tensors], "int32": [s.name for s in source.scalars]}
    assert names == [want[kind][index] for kind, index in launch.arguments]
    assert sorted(names) == ["amax", "n", "q", "stride", "x"]


@pytest.mark.parametrize(("builder", "params"), [(cast, {"hidden": 512}), (gather, {"hidden": 256}),
                                                 (staged, {"columns": 32})], ids=["cast", "gather", "staged"])
@pytest.mark.parametrize("vectors", [True, False])
def test_offsets_into_global_memory_are_64_bits_wide(builder: Any, params: Any, vectors: bool) -> None:
    """tokens x hidden passes 2^31: every index of a tensor of two or more dimensions is computed in int64."""
    source = _lowered(builder, vectors=vectors, **params)
    narrow, checked = _narrow_accesses(source.text, source.tensors)
    assert not narrow and checked >= 2
    assert len(_narrow_accesses(source.text.replace("(int64_t)", ""), source.tensors)[0]) == checked   # it can fail


def _narrow_accesses(text: str, tensors: Any) -> tuple[list[str], int]:
    """(accesses to global memory that are computed in 32 bits, accesses looked at)"""
    body = text[text.index("{", text.index("__launch_bounds__")):text.index("// launch")]
    narrow, checked = [], 0
    for tensor in tensors:
        for access in re.finditer(rf"\b{tensor.name}(\[| \+ )", body):
            index = _balanced(body, access.end())
            if len(tensor.shape) == 1 or re.fullmatch(r"\(?\w+\)?", index):
                continue   # one dimension is a symbol, below 2^31
            checked += 1
            if "int64_t" not in index or re.search(r"\(\(int\)blockIdx\.[xyz]\)\s*\*", index):
                narrow.append(f"{tensor.name}[{index}]")
    return narrow, checked


def _balanced(text: str, start: int) -> str:
    depth = 0
    for end in range(start, len(text)):
        depth += text[end] in "[("
        depth -= text[end] in "])"
        if depth < 0:
            return text[start:end]
    raise AssertionError("brackets do not match")


def test_aligned_rows_are_read_in_vectors_and_others_are_not() -> None:
    aligned, plain = _lowered(cast, hidden=512), _lowered(cast, vectors=False, hidden=512)
    assert launch_of(aligned.text).aligned == (("stride", 8),) and launch_of(aligned.text).vectors
    assert re.search(r"\*\(uint4\*\)\(x \+", aligned.text)
    assert launch_of(plain.text).aligned == () and not launch_of(plain.text).vectors
    for tensor in plain.tensors:
        assert not re.search(rf"\*\(\w+\*\)\({tensor.name} \+", plain.text)
    both = launch_of(_lowered(staged, columns=32).text)
    assert both.aligned == (("m", 4), ("n", 4))   # row-major strides are sizes


def test_only_strides_are_assumed_aligned() -> None:
    def columns(*, tile: Tiling) -> Any:
        n, m, pitch, wide = T.dynamic("n"), T.dynamic("m"), T.dynamic("pitch"), T.dynamic("wide")

        @T.prim_func
        def kernel(x: T.StridedTensor[(m, n), (pitch, 1), T.float32], y: T.Tensor[(n, m), T.int8],
                   z: T.Tensor[(2, wide, 64), T.bfloat16]):
            with T.Kernel(n, threads=32) as i:
                for j in T.Parallel(64):
                    if j < m:
                        y[i, j] = T.cast(x[j, i] + T.cast(z[1, 0, j], "float32"), "int8")
        return kernel

    assert launch_of(_lowered(columns).text).aligned == (("pitch", 4), ("m", 16), ("wide", 8))


def test_lowering_is_reproducible() -> None:
    assert _lowered(cast, hidden=512) == _lowered(cast, hidden=512)


def test_division_is_exact() -> None:
    flags = " ".join(cuda_backend.CudaBackend().flags(CUDA_SM90))
    assert "use_fast_math" not in flags and "tl.enable_fast_math=False" in flags


def test_what_cannot_be_launched_is_refused_by_name() -> None:
    def crowd(*, tile: Tiling) -> Any:
        @T.prim_func
        def kernel(x: T.Tensor[(4096,), T.float32]):
            with T.Kernel(1, threads=2048):
                for i in T.Parallel(4096):
                    x[i] = 1.0
        return kernel

    def pair(*, tile: Tiling) -> Any:
        @T.prim_func
        def kernel(x: T.Tensor[(64,), T.float32]):
            with T.Kernel(8, threads=32) as i:
                x[i] = 1.0
            with T.Kernel(8, threads=32) as i:
                x[i + 8] = 2.0
        return kernel

    with pytest.raises(LoweringError, match=r"test.op on cuda-sm90: emit failed: .*2048"):
        _lowered(crowd)
    with pytest.raises(LoweringError, match=r"exactly one T.Kernel, this one has 2"):
        _lowered(pair)
    with pytest.raises(LoweringError, match=r"262144 bytes of shared memory a block, and cuda-sm90 has 232448"):
        _lowered(staged, columns=256)


# ---------------------------------------------------------------------- nvcc
@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(tmp_path))
    return tmp_path


def _have_nvcc() -> bool:
    try:
        nvcc.version()
    except ToolchainMissing:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not _have_nvcc(), reason="no nvcc here: nothing is said of what it accepts")


@needs_nvcc
@pytest.mark.parametrize(("builder", "params", "shared"), [
    (cast, {"hidden": 512}, None), (gather, {"hidden": 256}, 0), (staged, {"columns": 128}, 128 * 128 * 4)],
    ids=["cast", "gather", "staged"])
def test_nvcc_accepts_the_text(builder: Any, params: Any, shared: int | None, cold_cache: Path) -> None:
    made = build(_kernel(builder), params, CUDA_SM90)
    assert made.directory is not None and made.compile_seconds is not None
    cubin = (made.directory / cuda_backend.CUBIN).read_bytes()
    assert cubin[:4] == b"\x7fELF" and made.source.name.encode() in cubin
    report = json.loads((made.directory / cuda_backend.REPORT).read_text())
    assert 8 <= report["registers"] <= 255 and report["spilled_bytes"] == 0
    assert report["compiler"] == f"nvcc {nvcc.version()}"
    if shared is not None:
        assert report["launch"]["shared_bytes"] == shared
    assert build(_kernel(builder), params, CUDA_SM90).compile_seconds is None


@needs_nvcc
def test_what_nvcc_refuses_is_kept_and_its_first_error_told(cold_cache: Path) -> None:
    made = lower(_kernel(gather), {"hidden": 256}, CUDA_SM90)
    broken = replace(made, source=replace(made.source, text="int nonsense = no_such_thing;\n" + made.text))
    with pytest.raises(LoweringError, match=r"compile failed: nvcc: .*no_such_thing") as caught:
        compile_artifact(broken)
    assert caught.value.saved is not None and "no_such_thing" in Path(caught.value.saved).read_text()


def test_a_missing_or_old_nvcc_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    real = shutil.which
    monkeypatch.setattr(nvcc.shutil, "which",
                        lambda name, path=None: None if path == "/usr/local/cuda/bin" else real(name, path=path))
    with pytest.raises(ToolchainMissing, match=r"looked for in PATH, .*cuda/bin, /usr/local/cuda/bin: install"):
        nvcc.find()
    program = tmp_path / "nvcc"
    program.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    program.chmod(0o755)
    with pytest.raises(ToolchainMissing, match=r"CUDA 11.8, which is too old: .* 12.3 or newer"):
        nvcc.version()
    program.write_text("#!/bin/sh\nexit 3\n")
    nvcc._version.cache_clear()
    with pytest.raises(ToolchainMissing, match="--version fails"):
        nvcc.version()
    nvcc._version.cache_clear()


# ---------------------------------------------------------------------- launches, against a driver that records
class FakeDriver:
    """libcuda's calls, recorded. One context, 11, that is current only after a push."""

    def __init__(self, fail: dict[str, int] | None = None, current: int = 0) -> None:
        self.calls: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.attributes: list[tuple[int, int]] = []
        self.fail, self.stack = fail or {}, [current]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name not in self.fail:
                getattr(self, f"on_{name}", lambda *_: None)(*arguments)
            return self.fail.get(name, 0)
        return call

    def on_cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        context._obj.value = 11

    def on_cuCtxGetCurrent(self, context: Any) -> None:
        context._obj.value = self.stack[-1]

    def on_cuCtxPushCurrent_v2(self, context: int) -> None:
        self.stack.append(context)

    def on_cuCtxPopCurrent_v2(self, context: Any) -> None:
        self.stack.pop()

    def on_cuModuleLoadData(self, module: Any, image: bytes) -> None:
        assert self.stack[-1] == 11, "loaded into no context"
        module._obj.value = 22

    def on_cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> None:
        function._obj.value = 33

    def on_cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> None:
        self.attributes.append((attribute, value))

    def on_cuLaunchKernel(self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
                          stream: int, params: Any, extra: Any) -> None:
        assert self.stack[-1] == 11 and function == 33 and params is None
        assert (extra[0], extra[2], extra[4]) == (1, 2, None)
        size = ctypes.c_size_t.from_address(extra[3]).value
        self.launches.append({"grid": (gx, gy, gz), "block": (bx, by, bz), "shared": shared, "stream": stream,
                              "arguments": ctypes.string_at(extra[1], size)})

    def on_cuGetErrorName(self, status: int, name: Any) -> None:
        name._obj.value = b"CUDA_ERROR_SOMETHING"


def _function(lib: Any, shared: int = 0) -> Function:
    return Function(b"cubin", "kernel", "test.op", (128, 1, 1), shared, ["tensor", "int32", "tensor", "int64"], lib)


def test_a_launch_packs_arguments_as_a_c_struct_and_leaves_the_context_as_it_was() -> None:
    lib = FakeDriver()
    function = _function(lib)
    for stream in (5, 6):
        function.launch(0, stream, (7, 2, 1), [0x1000, -3, 0x2000, 2**40])
    assert [one["stream"] for one in lib.launches] == [5, 6] and lib.stack == [0]
    assert lib.launches[0]["grid"] == (7, 2, 1) and lib.launches[0]["block"] == (128, 1, 1)
    assert struct.unpack("<Qi4xQq", lib.launches[0]["arguments"]) == (0x1000, -3, 0x2000, 2**40)
    assert lib.calls.count("cuModuleLoadData") == 1 and lib.calls.count("cuFuncSetAttribute") == 0
    function.launch(1, 5, (1, 1, 1), [0, 0, 0, 0])
    assert lib.calls.count("cuModuleLoadData") == 2, "each device has its own module"


def test_a_current_context_is_not_pushed_again() -> None:
    lib = FakeDriver(current=11)
    _function(lib).launch(0, 0, (1, 1, 1), [0, 0, 0, 0])
    assert "cuCtxPushCurrent_v2" not in lib.calls and lib.stack == [11]


@pytest.mark.parametrize(("shared", "attributes"), [(48 * 1024, []), (48 * 1024 + 4, [(8, 48 * 1024 + 4)])])
def test_more_than_48_kib_of_shared_memory_is_asked_for(shared: int, attributes: list[Any]) -> None:
    lib = FakeDriver()
    _function(lib, shared).launch(0, 0, (1, 1, 1), [0, 0, 0, 0])
    assert lib.attributes == attributes and lib.launches[0]["shared"] == shared


@pytest.mark.parametrize("grid", [(1, 65536, 1), (1, 1, 65536), (2**31, 1, 1)])
def test_a_grid_over_the_limits_is_refused(grid: tuple[int, int, int]) -> None:
    lib = FakeDriver()
    with pytest.raises(ValueError, match=r"test.op: a grid of .* is over CUDA's limits .*largest extent first"):
        _function(lib).launch(0, 0, grid, [0, 0, 0, 0])
    assert not lib.launches
    _function(lib).launch(0, 0, (2**31 - 1, 65535, 65535), [0, 0, 0, 0])
    assert len(lib.launches) == 1


@pytest.mark.parametrize(("call", "error", "message"), [
    ("cuLaunchKernel", CudaError, r"test.op: the launch of \(1, 1, 1\) blocks .*CUDA_ERROR_SOMETHING \(700\)"),
    ("cuModuleLoadData", LoweringError, r"the driver refuses the cubin: CUDA_ERROR_SOMETHING \(700\)"),
    ("cuInit", CudaError, r"test.op: cuInit failed"),
    ("cuModuleGetFunction", CudaError, r"cuModuleGetFunction failed"),
])
def test_an_error_of_the_driver_is_one_sentence(call: str, error: type[Exception], message: str) -> None:
    lib = FakeDriver(fail={call: 700})
    with pytest.raises(error, match=message):
        _function(lib).launch(0, 0, (1, 1, 1), [0, 0, 0, 0])
    assert lib.stack == [0]


STUB = r"""
#include <string.h>
static void *current;
unsigned grid[3], block[3], shared; unsigned long size; char packed[256]; void *stream;
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x7f0000000011; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxPushCurrent_v2(void *context) { current = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = current; current = 0; return 0; }
int cuModuleLoadData(void **module, const void *image) {
  if (memcmp(image, "\x7f" "ELF\0rest", 9)) return 200;
  *module = (void *)0x7f0000000022; return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (module != (void *)0x7f0000000022 || strcmp(name, "kernel")) return 500;
  *function = (void *)0x7f0000000033; return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return attribute == 8 ? 0 : 1; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned bytes, void *on, void **params, void **extra) {
  if (function != (void *)0x7f0000000033 || current != (void *)0x7f0000000011 || params) return 400;
  if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return 1;
  grid[0] = gx; grid[1] = gy; grid[2] = gz; block[0] = bx; block[1] = by; block[2] = bz;
  shared = bytes; stream = on; size = *(unsigned long *)extra[3]; memcpy(packed, extra[1], size);
  return 0;
}
int cuGetErrorName(int status, const char **name) { *name = "CUDA_ERROR_FROM_STUB"; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here: the driver's ABI is tried in Python only")
def test_the_driver_is_called_by_its_c_abi(tmp_path: Path) -> None:
    """Against a shared library in place of libcuda: widths of pointers and numbers as C sees them."""
    source, stub = tmp_path / "stub.c", tmp_path / "libstub.so"
    source.write_text(STUB)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(stub), str(source)], check=True)
    lib = driver._declare(ctypes.CDLL(str(stub)))
    image = b"\x7fELF\0rest"
    function = Function(image, "kernel", "test.op", (128, 2, 1), 100_000, ["tensor", "int32", "tensor", "int64"], lib)
    addresses = 0x7FFF_1234_5678, 0xFFFF_FFFF_0000_0010
    function.launch(0, 0x5555_0000_1111, (2**31 - 1, 65535, 3), [addresses[0], -3, addresses[1], 2**40])
    size = ctypes.c_ulong.in_dll(lib, "size").value
    packed = bytes((ctypes.c_char * 256).in_dll(lib, "packed"))[:size]
    assert struct.unpack("<Qi4xQq", packed) == (addresses[0], -3, addresses[1], 2**40)
    assert list((ctypes.c_uint * 3).in_dll(lib, "grid")) == [2**31 - 1, 65535, 3]
    assert list((ctypes.c_uint * 3).in_dll(lib, "block")) == [128, 2, 1]
    assert ctypes.c_uint.in_dll(lib, "shared").value == 100_000
    assert ctypes.c_void_p.in_dll(lib, "stream").value == 0x5555_0000_1111
    with pytest.raises(LoweringError, match=r"CUDA_ERROR_FROM_STUB \(200\)"):
        Function(b"not a cubin", "kernel", "test.op", (1, 1, 1), 0, [], lib).launch(0, 0, (1, 1, 1), [])


def test_no_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda_that_is_not_here.so.1")
    driver.library.cache_clear()
    with pytest.raises(ToolchainMissing, match=r"libcuda_that_is_not_here.so.1, which cannot be opened"):
        driver.library()
    driver.library.cache_clear()


@pytest.fixture
def recorded(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel loaded against the recording driver, with CPU tensors standing in for the GPU's."""
    lib, compiled = FakeDriver(), []

    def compile_cubin(source: Path, output: Path, target: Any, op: str) -> nvcc.Usage:
        compiled.append(launch_of(source.read_text()))
        output.write_bytes(b"cubin")
        return nvcc.Usage(32, 0, 0)

    monkeypatch.setattr(nvcc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvcc, "version", lambda: "13.0.88")
    monkeypatch.setattr(driver, "library", lambda: lib)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))

    def loaded(builder: Any, **params: Any) -> Any:
        made = build(_kernel(builder), params, CUDA_SM90)
        way = cuda_backend.CudaBackend()
        return Loaded(made, way.load(made.source, CUDA_SM90, made.directory, "device", made.op))

    return SimpleNamespace(lib=lib, compiled=compiled, loaded=loaded)


def test_a_call_passes_addresses_and_symbols_in_the_kernels_order(recorded: Any) -> None:
    run = recorded.loaded(cast, hidden=512)
    q, x, amax = torch.empty(9, 512).to(torch.float8_e4m3fn), torch.empty(9, 1024).bfloat16()[:, 512:], torch.empty(9)
    run((q, x, amax))
    (one,) = recorded.lib.launches
    assert one["grid"] == (3, 1, 1) and one["block"] == (128, 1, 1) and one["stream"] == 77
    known = {"q": q.data_ptr(), "x": x.data_ptr(), "amax": amax.data_ptr(), "n": 9, "stride": 1024}
    launch = recorded.compiled[0]
    names = {"tensor": ["q", "x", "amax"], "int32": ["n", "stride"]}
    want = [known[names[kind][index]] for kind, index in launch.arguments]
    codes = "".join({"tensor": "P", "int32": "i"}[kind] for kind, _ in launch.arguments)
    assert list(struct.unpack(f"@{codes}", one["arguments"])) == want


@pytest.mark.parametrize(("column", "stride", "aligned"), [
    (0, 520, True), (8, 520, True), (4, 520, False), (0, 516, False), (1, 1024, False)])
def test_rows_that_are_not_aligned_take_the_form_without_vectors(
        recorded: Any, column: int, stride: int, aligned: bool) -> None:
    run = recorded.loaded(cast, hidden=512)
    storage = torch.empty(9 * stride + 16, dtype=torch.bfloat16)
    assert storage.data_ptr() % 16 == 0
    x = storage.as_strided((9, 512), (stride, 1), column)
    arguments = (torch.empty(9, 512).to(torch.float8_e4m3fn), x, torch.empty(9))
    run(arguments)
    run(arguments)
    assert len(recorded.lib.launches) == 2
    assert [form.vectors for form in recorded.compiled] == ([True] if aligned else [True, False])


def test_an_empty_grid_is_not_launched(recorded: Any) -> None:
    run = recorded.loaded(gather, hidden=256)
    for batches, rows in ((0, 5), (2, 0)):
        run((torch.empty(batches, 4, 256), torch.empty(rows, dtype=torch.int32), torch.empty(batches, rows, 256)))
    assert not recorded.lib.launches
