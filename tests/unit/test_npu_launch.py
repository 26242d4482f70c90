"""Launches on an NPU, against libraries and programs that stand in for CANN's and record what they are given.

Real here: the kernels, TileLang, bishengir-compile, the cache, ctypes and C's own layout of arguments. Nothing here
shows what an NPU does with them.
"""

import ctypes
import functools
import json
import re
import shutil
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from monotile.compat import language as T
from monotile.compat import versions
from monotile.compat.errors import LoweringError, TargetMismatch, ToolchainMissing
from monotile.targets import acl, npu, select
from monotile.targets import launch as launch_module
from monotile.targets.ascendc import bisheng
from monotile.targets.backend import Source, TensorParam
from monotile.targets.kernel import Kernel
from monotile.targets.launch import ahead_of_time, launch
from monotile.targets.npuir import abi, device, toolchain
from monotile.targets.select import use_target
from monotile.targets.spec import ASCEND_910B, ASCEND_950
from monotile.targets.tiling import Tiling

_NO_COMPILER = shutil.which("cc") is None
_NO_NPUIR = versions.ascendnpu_ir() is None
needs_cc = pytest.mark.skipif(_NO_COMPILER, reason="no C compiler for the stand-in of libascendcl")
needs_npuir = pytest.mark.skipif(_NO_COMPILER or _NO_NPUIR, reason="needs ascendnpu-ir and a C compiler")

HIVMC = """#!/bin/sh
if [ "$1" = --version ]; then echo "hivmc {version} (abcdef012345 2026-01-02)"; exit 0; fi
echo "$@" >> {log}
for last; do :; done
printf 'ELF of {version}' > "$last"
"""


@dataclass(frozen=True)
class _Device:
    """An NPU's torch device, which torch knows only with torch_npu."""

    type: str
    index: int | None


class _OnNpu(torch.Tensor):
    """A CPU tensor that says that it is on an NPU."""

    where: _Device

    @property
    def device(self) -> Any:
        return self.where


def on_npu(tensor: torch.Tensor, index: int | None = 0) -> torch.Tensor:
    made = tensor.as_subclass(_OnNpu)
    made.where = _Device("npu", index)
    return made


@dataclass
class _TorchNpu:
    """What a launch uses of torch_npu.npu: the current device, and a stream each."""

    current: int = 0
    streams: dict[int, int] = field(default_factory=lambda: {0: 500, 1: 501})
    entered: list[int] = field(default_factory=list)

    def current_device(self) -> int:
        return self.current

    def current_stream(self) -> Any:
        return types.SimpleNamespace(npu_stream=self.streams[self.current])

    def device(self, number: int) -> Any:
        outer = self

        class Guard:
            def __enter__(self) -> None:
                self.before, outer.current = outer.current, number
                outer.entered.append(number)

            def __exit__(self, *_: object) -> None:
                outer.current = self.before

        return Guard()


class Machine:
    """Stand-ins for CANN and torch_npu, and what they were asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.npu = _TorchNpu()
        self.log, self.hivmc_log, self.bin = folder / "calls", folder / "hivmc-calls", folder / "bin"
        self.bin.mkdir()

    def calls(self) -> list[tuple[str, dict[str, str]]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [(line.split()[0], dict(word.split("=", 1) for word in line.split()[1:])) for line in lines]

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def hivmc(self, version: str = "1.2.3", name: str = "hivmc") -> None:
        self.program(name, HIVMC.format(version=version, log=self.hivmc_log))
        toolchain._version_of.cache_clear()

    def is_a(self, part: str) -> None:
        self._patch.setattr(select, "npu_name", lambda index=None: part)

    def fails(self, call: str, code: int, said: str = "") -> None:
        self._patch.setenv("ACL_FAIL", f"{call}={code}")
        self._patch.setenv("ACL_SAID", said)


@functools.cache
def _stub(folder: Path) -> Path:
    library = folder / "libascendcl.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("acl_stub.c"))],
                   check=True)
    return library


@pytest.fixture
def machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
            monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    stub = _stub(tmp_path_factory.getbasetemp())
    for variable in ("KERNEL_TARGET", "KERNEL_BACKEND", "KERNEL_EXECUTOR", "ACL_FAIL", "ACL_SAID", "ASCEND_HOME_PATH",
                     "ASCEND_TOOLKIT_HOME", acl.BLOCKING_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ACL_LOG", str(made.log))
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(acl, "LIBRARY", str(stub))
    monkeypatch.setattr(versions, "torch_npu", lambda: "2.9.0")
    monkeypatch.setattr(versions, "cann", lambda: "8.5.0")
    monkeypatch.setattr(launch_module, "_loaded", {})
    module = types.ModuleType("torch_npu")
    module.npu = made.npu   # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    acl.library.cache_clear()
    # The stand-in keeps a current device for each thread; each test is to find it as a new thread does.
    acl.library().aclrtSetDevice(-1)
    made.log.unlink()
    yield made
    acl.library.cache_clear()
    toolchain._version_of.cache_clear()
    bisheng._version_of.cache_clear()


# ---------------------------------------------------------------------- a kernel with two dynamic symbols
def _scale(hidden: int, *, tile: Tiling) -> Any:
    n, stride = T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def scale_rows(
        x: T.StridedTensor[(n, hidden), (stride, 1), T.float32],
        factor: T.Tensor[(n,), T.float32],
        y: T.Tensor[(n, hidden), T.float32],
    ):
        with T.Kernel(T.ceildiv(n, tile.tokens), threads=tile.threads) as block:
            rows = T.alloc_fragment((tile.tokens, hidden), T.float32)
            f = T.alloc_fragment((tile.tokens,), T.float32)
            T.copy(x[block * tile.tokens, 0], rows)
            T.copy(factor[block * tile.tokens], f)
            for i, j in T.Parallel(tile.tokens, hidden):
                rows[i, j] = rows[i, j] * f[i]
            T.copy(rows, y[block * tile.tokens, 0])
    return scale_rows


KERNEL = Kernel("test.scale_rows", _scale, Tiling(tokens=8, threads=128),
                lambda tile, hidden: 4 * tile.tokens * (hidden + 1))


def arguments(tokens: int, index: int | None = 0) -> list[torch.Tensor]:
    """x is every other row of a larger tensor: its stride is no size of it, and y is written nowhere."""
    x = torch.zeros(2 * tokens, 64)[::2]
    return [on_npu(t, index) for t in (x, torch.zeros(tokens), torch.zeros(tokens, 64))]


# ---------------------------------------------------------------------- 910B
@needs_npuir
def test_a_910b_is_launched_with_every_argument_in_its_place(machine: Machine) -> None:
    machine.hivmc()
    machine.is_a("Ascend910B3")
    tensors = arguments(33)
    launch(KERNEL, *tensors, hidden=64)
    calls = machine.calls()
    assert [name for name, _ in calls] == [
        "aclrtSetDevice", "aclrtBinaryLoadFromData", "aclrtBinaryGetFunction", "aclrtGetHardwareSyncAddr",
        "aclrtLaunchKernelWithHostArgs"]
    load, function, launched = calls[1][1], calls[2][1], calls[4][1]
    assert load["length"] == str(len("ELF of 1.2.3")) and load["first"] == "ELF"
    assert load["option1"] == "0" and load["option2"] == str(0x41415246)   # loaded at once, for vector cores
    assert function["name"] == "scale_rows" and function["binary"] == load["binary"]
    assert launched["function"] == function["function"]
    assert launched["blocks"] == "40" and launched["stream"] == "500"
    assert (launched["holders"], launched["count"]) == ("0", "0") and not any("attr" in key for key in launched)
    packed = bytes.fromhex(launched["args"])
    # ffts, lock, workspace, x, factor, y: 8 bytes each; n, stride, grid of three, program of three: 4 bytes each
    assert launched["size"] == str(len(packed)) and len(packed) == 6 * 8 + 8 * 4
    assert struct.unpack("<6Q8i", packed) == (
        0x7700001234, 0, 0, *(t.data_ptr() for t in tensors), 33, 128, 40, 1, 1, 0, 0, 0)


@needs_npuir
def test_the_order_is_the_emitted_entrys(machine: Machine) -> None:
    """The kinds that are packed, against the types of the function that the compiler hands to hivmc."""
    machine.hivmc()
    machine.is_a("Ascend910B3")
    with ahead_of_time("ascend-910b") as artifacts:
        launch(KERNEL, *arguments(33), hidden=64)
    (artifact,) = artifacts()
    assert artifact.directory is not None
    final = (artifact.directory / "final.mlir").read_text()
    entry = re.search(r"func\.func @scale_rows\((.*?)\) attributes", final)
    assert entry is not None
    types_ = re.findall(r"%arg\d+: (\w+)", entry[1])
    assert "ffts_base_address" in entry[1].split(",")[0]
    kinds = {"i64": "sync_address", "memref": "pointer", "i32": "int32"}
    assert tuple(kinds[t] for t in types_) == abi.device_arguments(3, 2, synchronised=True)


@needs_npuir
def test_a_second_launch_loads_nothing_and_another_device_loads_once(machine: Machine) -> None:
    machine.hivmc()
    machine.is_a("Ascend910B1")
    tensors = arguments(5)
    launch(KERNEL, *tensors, hidden=64)
    machine.calls()
    launch(KERNEL, *tensors, hidden=64)
    ((name, again),) = machine.calls()
    assert name == "aclrtLaunchKernelWithHostArgs"
    assert again["blocks"] == "48"   # this part's vector cores

    launch(KERNEL, *arguments(5, index=1), hidden=64)
    calls = dict(machine.calls())
    assert calls["aclrtSetDevice"] == {"device": "1"} and "aclrtBinaryLoadFromData" in calls
    assert calls["aclrtLaunchKernelWithHostArgs"]["stream"] == "501"
    assert machine.npu.entered == [1] and machine.npu.current == 0
    assert calls["aclrtLaunchKernelWithHostArgs"]["function"] != again["function"]


@needs_npuir
def test_a_device_without_a_number_is_torch_npus_current_one(machine: Machine) -> None:
    machine.hivmc()
    machine.is_a("Ascend910B3")
    machine.npu.current = 1
    launch(KERNEL, *arguments(5, index=None), hidden=64)
    calls = dict(machine.calls())
    assert calls["aclrtSetDevice"] == {"device": "1"}
    assert calls["aclrtLaunchKernelWithHostArgs"]["stream"] == "501" and machine.npu.entered == []


@needs_npuir
def test_no_tokens_and_wrong_tensors_reach_no_device(machine: Machine) -> None:
    machine.hivmc()
    machine.is_a("Ascend910B3")
    launch(KERNEL, *arguments(0), hidden=64)
    assert machine.calls() == []
    with pytest.raises(ValueError, match="size 1 of x must be 64, got 32"):
        launch(KERNEL, *(on_npu(t) for t in (torch.zeros(3, 32), torch.zeros(3), torch.zeros(3, 64))), hidden=64)
    assert machine.calls() == []


@needs_npuir
def test_a_thread_that_has_no_context_gets_one(machine: Machine) -> None:
    machine.hivmc()
    machine.is_a("Ascend910B3")
    tensors = arguments(5)
    launch(KERNEL, *tensors, hidden=64)
    machine.calls()
    thread = threading.Thread(target=launch, args=(KERNEL, *tensors), kwargs={"hidden": 64})
    thread.start()
    thread.join()
    assert [name for name, _ in machine.calls()] == ["aclrtSetDevice", "aclrtLaunchKernelWithHostArgs"]


# ---------------------------------------------------------------------- what fails
@needs_npuir
@pytest.mark.parametrize("call,code,error,words", [
    ("aclrtSetDevice", 107001, acl.NpuError, r"aclrtSetDevice failed: an invalid device \(107001\): E1: no card"),
    ("aclrtBinaryLoadFromData", 107000, LoweringError, r"load failed: CANN's runtime refuses the binary: an invalid"),
    ("aclrtBinaryGetFunction", 500000, acl.NpuError, r"aclrtBinaryGetFunction of 'scale_rows' failed: error 500000: E"),
    ("aclrtGetHardwareSyncAddr", 507899, acl.NpuError, r"aclrtGetHardwareSyncAddr failed: an error inside the driver"),
    ("aclrtLaunchKernelWithHostArgs", 207001, acl.NpuError,
     r"test\.scale_rows: the launch of 40 blocks failed: the device is out of memory \(207001\): E1: no card"),
])
def test_a_call_that_fails_is_a_sentence(machine: Machine, call: str, code: int, error: type[Exception],
                                         words: str) -> None:
    """With the code, what it means and the first line of what the runtime says; the next launch tries again."""
    machine.hivmc()
    machine.is_a("Ascend910B3")
    machine.fails(call, code, "E1: no card\nmore that nobody reads")
    tensors = arguments(5)
    with pytest.raises(error, match=words) as raised:
        launch(KERNEL, *tensors, hidden=64)
    assert "nobody reads" not in str(raised.value)
    if isinstance(raised.value, acl.NpuError):
        assert raised.value.code == code
    machine.calls()
    machine.fails("nothing", 0)
    launch(KERNEL, *tensors, hidden=64)
    assert machine.calls()[-1][0] == "aclrtLaunchKernelWithHostArgs"


@needs_npuir
def test_a_kernel_that_fails_is_named_when_launches_block(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.hivmc()
    machine.is_a("Ascend910B3")
    machine.fails("aclrtSynchronizeStream", 507035)
    launch(KERNEL, *arguments(5), hidden=64)   # enqueued: nothing is known of it yet
    assert "aclrtSynchronizeStream" not in dict(machine.calls())
    monkeypatch.setenv(acl.BLOCKING_VARIABLE, "1")
    with pytest.raises(acl.NpuError, match=r"test\.scale_rows: the kernel.* failed: a vector core met an exception"):
        launch(KERNEL, *arguments(5), hidden=64)
    assert dict(machine.calls())["aclrtSynchronizeStream"] == {"stream": "500"}


def test_a_library_that_is_missing_or_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl, "LIBRARY", "libascendcl_that_is_not_here.so")
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    acl.library.cache_clear()
    with pytest.raises(ToolchainMissing, match=r"libascendcl_that_is_not_here.so, which cannot be opened .* set_env"):
        acl.library()
    with pytest.raises(ToolchainMissing, match=r"has no aclrtGetDevice: install CANN 8\.5 or newer"):
        acl._declare(ctypes.CDLL("libm.so.6"))


@needs_cc
def test_the_library_is_found_in_the_toolkit(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    stub = _stub(tmp_path_factory.getbasetemp())
    (tmp_path / "lib64").mkdir()
    shutil.copy(stub, tmp_path / "lib64" / "libcl_of_a_test.so")
    monkeypatch.setattr(acl, "LIBRARY", "libcl_of_a_test.so")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    acl.library.cache_clear()
    assert acl.library().aclGetRecentErrMsg.restype is ctypes.c_char_p
    acl.library.cache_clear()


def test_tensors_and_torch_npu_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetMismatch, match="takes tensors on npu, these are on cpu"), \
            npu.on_device_of([torch.zeros(1)], "test.case"):
        raise AssertionError("not reached")
    monkeypatch.setitem(sys.modules, "torch_npu", None)   # as where it is not installed
    with pytest.raises(ToolchainMissing, match=r"needs torch_npu, which cannot be imported"), \
            npu.on_device_of([on_npu(torch.zeros(1))], "test.case"):
        raise AssertionError("not reached")


# ---------------------------------------------------------------------- hivmc
@needs_npuir
def test_the_command_lines_of_both_compilers(machine: Machine) -> None:
    root = toolchain._root() / "bin"
    line = toolchain.command(Path("d/kernel.mlir"), Path("d/kernel.o"), "Ascend910B3", "c220", multi_buffer=True)
    assert line == [str(root / "bishengir-compile"), "d/kernel.mlir", "--target=Ascend910B3",
                    "-enable-hivm-compile=true", "--enable-auto-multi-buffer=true", "--save-temps=d", "-o",
                    "d/kernel.o"]
    assert toolchain.command(Path("k"), Path("o"), "Ascend950PR_9579", "c310", multi_buffer=False)[:4] == [
        str(root / "bishengir-compile-a5"), "k", "--target=Ascend950PR_9579", "-enable-hivm-compile=true"]
    machine.hivmc()
    with ahead_of_time("ascend-910b"):
        launch(KERNEL, *arguments(5), hidden=64)
    (given,) = machine.hivmc_log.read_text().splitlines()   # what bishengir-compile passes on
    folder = given.split()[0].rsplit("/", 1)[0]
    assert given.replace(folder, "d").split() == [
        "d/module.hivm.opt.mlir", "--enable-debug-info=false", "--enable-static-bare-ptr=true",
        "--enable-bin-relocation=true", "--enable-hivm-inject-barrier-all-sync=false", "--enable-sanitizer=false",
        "-o", "d/kernel.o"]


@needs_npuir
def test_binaries_are_cached_for_each_version_of_hivmc(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.is_a("Ascend910B3")

    def run(version: str) -> int:
        machine.hivmc(version)
        monkeypatch.setattr(launch_module, "_loaded", {})   # as in a new process
        launch(KERNEL, *arguments(5), hidden=64)
        return len(machine.hivmc_log.read_text().splitlines())

    assert [run(version) for version in ("1.2.3", "1.2.3", "1.3.0", "1.2.3")] == [1, 1, 2, 2]
    loads = [values for name, values in machine.calls() if name == "aclrtBinaryLoadFromData"]
    assert len(loads) == 4 and {values["length"] for values in loads} == {str(len("ELF of 1.2.3"))}
    reports = [json.loads(path.read_text()) for path in (machine.folder / "cache").rglob("compiled.json")]
    assert sorted(report["hivmc"] for report in reports) == [
        f"hivmc {version} (abcdef012345 2026-01-02)" for version in ("1.2.3", "1.3.0")]


@needs_npuir
def test_without_hivmc_the_device_is_refused_and_the_emulator_runs(machine: Machine) -> None:
    machine.is_a("Ascend910B3")
    with pytest.raises(ToolchainMissing, match=r"a binary for ascend-910b needs CANN's hivmc, .* KERNEL_EXECUTOR=emu"):
        launch(KERNEL, *arguments(5), hidden=64)
    x, factor, y = torch.randn(5, 64), torch.randn(5), torch.zeros(5, 64)
    launch(KERNEL, x, factor, y, hidden=64)
    assert torch.equal(y, x * factor[:, None]) and machine.calls() == []


@needs_npuir
def test_a_hivmc_that_refuses_is_quoted_and_asked_again(machine: Machine) -> None:
    """The emulator needs no binary and runs; what was refused is not kept from a hivmc that is mended."""
    machine.is_a("Ascend910B3")
    machine.program("hivmc", '#!/bin/sh\n[ "$1" = --version ] && { echo "hivmc 1.2.3 (abcdef012345 2026-01-02)"; '
                             'exit 0; }\necho "[ERROR] Cannot find bisheng" >&2\nexit 3\n')
    with pytest.raises(LoweringError, match=r"ascend-910b: compile failed: hivmc made no binary: \[ERROR\] Cannot find "
                                            "bisheng"):
        launch(KERNEL, *arguments(5), hidden=64)
    x, factor, y = torch.randn(5, 64), torch.randn(5), torch.zeros(5, 64)
    launch(KERNEL, x, factor, y, hidden=64)
    assert torch.equal(y, x * factor[:, None])
    machine.hivmc("1.2.3")   # the same version: the entry of the cache has no binary
    launch(KERNEL, *arguments(5), hidden=64)
    assert machine.calls()[-1][0] == "aclrtLaunchKernelWithHostArgs"


def test_a_hivmc_that_does_not_tell_its_version_is_known_by_its_size(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hivmc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "hivmc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    toolchain._version_of.cache_clear()
    assert toolchain.hivmc_version("c220") == "hivmc of 17 bytes"
    assert toolchain.hivmc_version("c310") is None
    toolchain._version_of.cache_clear()


# ---------------------------------------------------------------------- lock and workspace
LOCKED = """module attributes {hacc.target = #hacc.target<"Ascend910B3">,
  hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @locked(%ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>, %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %x: memref<?xf32, #hivm.address_space<gm>>) attributes {
    SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry,
    hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>,
    mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %l = hivm.hir.create_sync_block_lock : memref<1xi64>
  hivm.hir.sync_block_lock lock_var(%l : memref<1xi64>)
  hivm.hir.sync_block_unlock lock_var(%l : memref<1xi64>)
  return
}
}
"""
WORKSPACE = """  func.func @locked_infer_workspace_shape_function() -> index attributes {hacc.function_kind = 0} {
    %c7 = arith.constant 7 : index
    %c4096 = arith.constant 4096 : index
    return %c4096 : index
  }
"""


def final_ir_of(text: str, folder: Path) -> str:
    (folder / "k.mlir").write_text(text)
    subprocess.run(toolchain.command(folder / "k.mlir", folder / "k.o", "Ascend910B3", "c220", multi_buffer=False),
                   capture_output=True, check=True)
    return (folder / toolchain.FINAL_IR).read_text()


@needs_npuir
def test_what_the_compiler_asks_of_its_launcher_is_allocated(machine: Machine) -> None:
    """Its host functions say how many locks, of which value, and how much workspace a block."""
    machine.hivmc()
    machine.is_a("Ascend910B2")
    final = final_ir_of(LOCKED, machine.folder)
    assert abi.buffers(final, "locked") == abi.Buffers(workspace_bytes=0, locks=8, lock_value=0)
    final += WORKSPACE
    assert abi.buffers(final, "locked") == abi.Buffers(workspace_bytes=4096, locks=8, lock_value=0)
    assert abi.buffers(final, "other") == abi.Buffers(0, 0, 0)

    x = on_npu(torch.zeros(8))
    made: list[tuple[tuple[int, ...], Any, int, int]] = []

    class Watched(_OnNpu):
        def new_full(self, size: Any, value: Any, **keywords: Any) -> torch.Tensor:   # type: ignore[override]
            memory = torch.full(size, value, **keywords)
            made.append((tuple(size), keywords["dtype"], value, memory.data_ptr()))
            return memory

    watched = x.as_subclass(Watched)
    watched.where = _Device("npu", 0)
    source = Source(LOCKED, ".mlir", "locked", (TensorParam("x", "float32", (8,), (1,)),), ())
    device.runner(source, ASCEND_910B, b"ELF", final, "test.locked")([watched])
    assert [m[:3] for m in made] == [((4096 * 48,), torch.uint8, 0), ((8,), torch.int64, 0)]
    packed = bytes.fromhex(machine.calls()[-1][1]["args"])
    assert struct.unpack("<4Q6i", packed) == (0x7700001234, made[1][3], made[0][3], x.data_ptr(), 48, 1, 1, 0, 0, 0)


def test_a_host_function_that_computes_is_refused() -> None:
    with pytest.raises(ValueError, match="locked_infer_workspace_shape_function returns no constant"):
        abi.buffers(WORKSPACE.replace("return %c4096", "return %7"), "locked")


@needs_cc
def test_the_950s_kernels_get_no_sync_address(machine: Machine) -> None:
    machine.is_a("Ascend950PR_9599")
    source = Source("", ".mlir", "k", (TensorParam("x", "float32", (8,), (1,)),), ())
    x = on_npu(torch.zeros(8))
    device.runner(source, ASCEND_950, b"ELF", "", "test.k")([x])
    calls = dict(machine.calls())
    assert "aclrtGetHardwareSyncAddr" not in calls
    packed = bytes.fromhex(calls["aclrtLaunchKernelWithHostArgs"]["args"])
    assert struct.unpack("<4Q6i", packed) == (0, 0, 0, x.data_ptr(), 72, 1, 1, 0, 0, 0)


# ---------------------------------------------------------------------- 950
@needs_cc
def test_a_950_is_launched_with_every_argument_in_its_place(machine: Machine) -> None:
    """TileLang puts an entry's tensors in an order of its own and needs UB at the launch."""
    machine.program("bisheng", '#!/bin/sh\n[ "$1" = --version ] && { echo "bisheng 15"; exit 0; }\n'
                               'for last; do :; done\nprintf "REL" > "$last"\n')
    machine.program("ld.lld", '#!/bin/sh\nfor last; do :; done\nprintf "AIBIN" > "$last"\n')
    machine.is_a("Ascend950PR_9579")
    x, factor, y = tensors = arguments(33)
    launch(KERNEL, *tensors, hidden=64)
    calls = dict(machine.calls())
    load, launched = calls["aclrtBinaryLoadFromData"], calls["aclrtLaunchKernelWithHostArgs"]
    assert load["length"] == "5" and load["first"] == "AIBI" and not any("option" in key for key in load)
    assert calls["aclrtBinaryGetFunction"]["name"] == "scale_rows_kernel"
    assert launched["blocks"] == str(ASCEND_950.vector_cores) and launched["stream"] == "500"
    assert 8 * 65 * 4 <= int(launched["attr2"]) <= ASCEND_950.on_chip_bytes
    source = next((machine.folder / "cache").rglob("source.cpp")).read_text()
    entry = re.search(r'extern "C" __global__ \S+ void scale_rows_kernel\((.*?)\)', source)
    assert entry is not None
    names = re.findall(r"(\w+)(?:,|$)", entry[1])
    values = {"x": x.data_ptr(), "factor": factor.data_ptr(), "y": y.data_ptr(), "n": 33, "stride": 128}
    assert sorted(names) == sorted(values)
    layout = "<" + "".join("Q" if name in ("x", "factor", "y") else "i" for name in names)
    packed = bytes.fromhex(launched["args"])
    assert len(packed) == 3 * 8 + 2 * 4
    assert struct.unpack(layout, packed) == tuple(values[name] for name in names)

    launch(KERNEL, *tensors, hidden=64)
    assert [name for name, _ in machine.calls()] == ["aclrtLaunchKernelWithHostArgs"]


@needs_cc
def test_without_bisheng_a_950_is_refused(machine: Machine) -> None:
    machine.is_a("Ascend950PR_9579")
    with pytest.raises(ToolchainMissing, match=r"a binary for ascend-950 needs CANN's bisheng, .*KERNEL_EXECUTOR=emu"):
        launch(KERNEL, *arguments(5), hidden=64)
    with use_target("ascend-950"):
        x, factor, y = torch.randn(5, 64), torch.randn(5), torch.zeros(5, 64)
        launch(KERNEL, x, factor, y, hidden=64)
    assert torch.equal(y, x * factor[:, None])
