"""The calls of CANN's libascendcl that load a device binary and launch its kernel, through ctypes.

No NPU has run a launch made here; the tests check every call against a library that records them. Public sources of
the ABI, by the letters used below:

    R  the runtime's public header, hicann/runtime include/external/acl/acl_rt.h (aclError is a 32-bit int, handles
       are pointers) and error_codes/rt_error_codes.h; CANN 8.5's API reference documents the same calls.
    T  triton-lang/triton-ascend third_party/ascend/backend: npu_utils.cpp (loading) and launcher_src/launcher_args.h,
       launcher_cann.h (arguments), for binaries that bishengir-compile and hivmc made.
    L  tile-ai/tilelang src/ascend/runtime/ascend_module.cc, for binaries that bisheng made of AscendC.

    aclrtGetDevice, aclrtSetDevice, aclrtSynchronizeStream, aclGetRecentErrMsg   R
    aclrtBinaryLoadFromData(data, length, options, &binary)                      R, T with options, L without
    aclrtBinaryGetFunction(binary, name, &function)                              R, T, L
    aclrtGetHardwareSyncAddr(&address)                                           R, T
    aclrtLaunchKernelWithHostArgs(function, blocks, stream, config, arguments, size, placeholders, count)   R, T, L

Arguments lie in one host buffer in the order of the entry's parameters, each at a multiple of its size and of 4, and
the buffer's size is a multiple of 8 (T: a packed struct with aligned members; L: MakeAclArgPackPlan).
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monotile.compat.errors import LoweringError, MonotileError, ToolchainMissing

LIBRARY = "libascendcl.so"
BLOCKING_VARIABLE = "MONOTILE_LAUNCH_BLOCKING"
VECTOR_CORE = 0x41415246      # R: ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE
_LAZY_LOAD, _MAGIC = 1, 2     # R: ACL_RT_BINARY_LOAD_OPT_LAZY_LOAD, ACL_RT_BINARY_LOAD_OPT_MAGIC
_DYNAMIC_UB = 2               # R: ACL_RT_LAUNCH_KERNEL_ATTR_DYN_UBUF_SIZE
_FORMATS = {"sync_address": "P", "pointer": "P", "int32": "i", "int64": "q"}
# R: error_codes/rt_error_codes.h and acl_base_rt.h; those that a launch or its kernel may end with
_ERRORS = {
    100000: "an invalid argument", 107000: "an invalid argument", 107001: "an invalid device",
    107002: "no context is current in this thread", 107003: "the stream is not of the current context",
    107020: "the task took too long", 107022: "the device is aborting its tasks",
    207001: "the device is out of memory",
    507014: "an AI core took too long", 507015: "an AI core met an exception",
    507034: "a vector core took too long", 507035: "a vector core met an exception",
    507046: "the stream took too long", 507899: "an error inside the driver", 507901: "the device was lost",
}


class NpuError(MonotileError, RuntimeError):
    """CANN's runtime refused a call, or a kernel failed; ``code`` is its aclError."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code)


class _Value(ctypes.Union):
    """R: aclrtBinaryLoadOptionValue (isLazyLoad, magic) and aclrtLaunchKernelAttrValue (dynUBufSize), both 16 bytes."""

    _fields_ = [("number", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 4)]


class _Option(ctypes.Structure):
    """R: aclrtBinaryLoadOption (type, value) and aclrtLaunchKernelAttr (id, value)."""

    _fields_ = [("kind", ctypes.c_int), ("value", _Value)]


class _Options(ctypes.Structure):
    """R: aclrtBinaryLoadOptions (options, numOpt) and aclrtLaunchKernelCfg (attrs, numAttrs)."""

    _fields_ = [("first", ctypes.POINTER(_Option)), ("count", ctypes.c_size_t)]


def _options(*pairs: tuple[int, int]) -> _Options:
    made = (_Option * len(pairs))()
    for option, (kind, number) in zip(made, pairs):
        option.kind, option.value.number = kind, number
    return _Options(made, len(pairs))   # ctypes keeps the array alive with the structure


@functools.cache
def library() -> Any:
    """libascendcl: as the loader finds it (CANN's set_env.sh, or torch_npu that has opened it), else in the toolkit.

    Raises ToolchainMissing.
    """
    homes = [os.environ.get("ASCEND_HOME_PATH"), os.environ.get("ASCEND_TOOLKIT_HOME")]
    why = ""
    for path in (LIBRARY, *(str(Path(home, "lib64", LIBRARY)) for home in homes if home)):
        try:
            return _declare(ctypes.CDLL(path))
        except OSError as error:
            why = why or str(error)
    raise ToolchainMissing(f"launching on an NPU needs CANN's {LIBRARY}, which cannot be opened ({why}): install CANN "
                           "and source its set_env.sh")


def _declare(lib: Any) -> Any:
    pointer, size, error = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    by_reference = ctypes.POINTER(ctypes.c_void_p)
    for name, arguments in {
        "aclrtGetDevice": [ctypes.POINTER(ctypes.c_int32)],
        "aclrtSetDevice": [ctypes.c_int32],
        "aclrtSynchronizeStream": [pointer],
        "aclrtBinaryLoadFromData": [pointer, size, ctypes.POINTER(_Options), by_reference],
        "aclrtBinaryGetFunction": [pointer, ctypes.c_char_p, by_reference],
        "aclrtGetHardwareSyncAddr": [by_reference],
        "aclrtLaunchKernelWithHostArgs": [pointer, ctypes.c_uint32, pointer, ctypes.POINTER(_Options), pointer, size,
                                          pointer, size],
    }.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise ToolchainMissing(f"CANN's {LIBRARY} has no {name}: install CANN 8.5 or newer, and source its "
                                   "set_env.sh") from None
        function.argtypes, function.restype = arguments, error
    lib.aclGetRecentErrMsg.argtypes, lib.aclGetRecentErrMsg.restype = [], ctypes.c_char_p
    return lib


class Function:
    """One kernel of a device binary, loaded on each device when first launched there. Safe in threads."""

    def __init__(self, binary: bytes, name: str, op: str, target: str, arguments: Sequence[str], *,
                 magic: int | None = None, dynamic_ub: int = 0, lib: Any = None) -> None:
        """``arguments``: "pointer", "int32", "int64" each, or "sync_address", which is filled in here.

        ``magic``: the cores that the binary is for, where its format leaves that open. ``dynamic_ub``: bytes of UB
        that the launch asks for. Raises ToolchainMissing.
        """
        self._binary, self._name, self.op, self._target = binary, name, op, target
        self._magic, self._config = magic, _options((_DYNAMIC_UB, dynamic_ub)) if dynamic_ub else None
        self._lib = library() if lib is None else lib
        self._sync = [position for position, kind in enumerate(arguments) if kind == "sync_address"]
        # native alignment, and the end aligned as a pointer
        self._pack = struct.Struct("@" + "".join(_FORMATS[kind] for kind in arguments) + "0P").pack
        self._handles: dict[int, tuple[int, int]] = {}   # device -> function, sync address
        self._loading = threading.Lock()

    def launch(self, device: int, stream: int, blocks: int, values: Sequence[int]) -> None:
        """Enqueue one launch on a stream of ``device``. ``values`` leaves the sync address out.

        Raises NpuError. What goes wrong in the kernel itself shows when its stream is synchronised: at once with
        MONOTILE_LAUNCH_BLOCKING=1, which names the op.
        """
        lib = self._lib
        self._make_current(device)
        handles = self._handles.get(device)
        if handles is None:
            handles = self._load(device)
        function, sync_address = handles
        for position in self._sync:
            values = [*values[:position], sync_address, *values[position:]]
        packed = self._pack(*values)
        buffer = ctypes.create_string_buffer(packed, len(packed))   # the runtime copies it before the call returns
        status = lib.aclrtLaunchKernelWithHostArgs(function, blocks, stream, self._config, buffer, len(packed), None, 0)
        if status:
            raise self._error(f"the launch of {blocks} blocks failed", status)
        if os.environ.get(BLOCKING_VARIABLE) == "1":
            status = lib.aclrtSynchronizeStream(stream)
            if status:
                raise self._error("the kernel, or work before it on its stream, failed", status)

    def _make_current(self, device: int) -> None:
        """A thread that has not used the NPU yet has no context; torch_npu has made ``device`` current elsewhere."""
        current = ctypes.c_int32(-1)
        if self._lib.aclrtGetDevice(ctypes.byref(current)) or current.value != device:
            self._must(self._lib.aclrtSetDevice(device), "aclrtSetDevice")

    def _load(self, device: int) -> tuple[int, int]:
        with self._loading:
            if device in self._handles:
                return self._handles[device]
            lib, binary, function = self._lib, ctypes.c_void_p(), ctypes.c_void_p()
            options = None if self._magic is None else _options((_LAZY_LOAD, 0), (_MAGIC, self._magic))
            status = lib.aclrtBinaryLoadFromData(self._binary, len(self._binary), options, ctypes.byref(binary))
            if status:
                raise LoweringError(self.op, self._target, "load", "CANN's runtime refuses the binary: "
                                    f"{self._said(status)} (a CANN other than the one that compiled it may be the "
                                    "cause)")
            self._must(lib.aclrtBinaryGetFunction(binary, self._name.encode(), ctypes.byref(function)),
                       f"aclrtBinaryGetFunction of {self._name!r}")
            address = ctypes.c_void_p()
            if self._sync:
                self._must(lib.aclrtGetHardwareSyncAddr(ctypes.byref(address)), "aclrtGetHardwareSyncAddr")
            assert function.value is not None
            self._handles[device] = (function.value, address.value or 0)
            return self._handles[device]

    def _must(self, status: int, call: str) -> None:
        if status:
            raise self._error(f"{call} failed", status)

    def _error(self, what: str, status: int) -> NpuError:
        return NpuError(f"{self.op}: {what}: {self._said(status)}", status)

    def _said(self, status: int) -> str:
        """The code in words, and the first line of what the runtime says of it."""
        told = (self._lib.aclGetRecentErrMsg() or b"").decode(errors="replace").strip()
        words = f"{_ERRORS[status]} ({status})" if status in _ERRORS else f"error {status}"
        return f"{words}: {told.splitlines()[0][:400]}" if told else words
