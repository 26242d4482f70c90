"""The few calls of the CUDA driver that load a cubin and launch its kernel, through ctypes.

Kernels run in PyTorch's context (the device's primary one) on PyTorch's current stream. libcuda is opened when first
needed; everything here can be tested against a library that records its calls.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Sequence
from typing import Any

from monotile.compat.errors import LoweringError, MonotileError, ToolchainMissing

LIBRARY = "libcuda.so.1"
GRID_LIMITS = (2**31 - 1, 65535, 65535)
_STATIC_SHARED = 48 * 1024   # more must be asked for
_MAX_DYNAMIC_SHARED = 8      # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0   # CU_LAUNCH_PARAM_*
_FORMATS = {"tensor": "P", "int32": "i", "int64": "q"}


class CudaError(MonotileError, RuntimeError):
    """The CUDA driver refused a call; the message has its name for the error."""


@functools.cache
def library() -> Any:
    """libcuda. Raises ToolchainMissing."""
    try:
        return _declare(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise ToolchainMissing(f"launching on CUDA needs the NVIDIA driver's {LIBRARY}, which cannot be opened "
                               f"({error}): install the driver") from error


def _declare(lib: Any) -> Any:
    pointer, integer, unsigned = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
    by_reference = ctypes.POINTER(ctypes.c_void_p)
    for name, arguments in {
        "cuInit": [unsigned],
        "cuDeviceGet": [ctypes.POINTER(integer), integer],
        "cuDevicePrimaryCtxRetain": [by_reference, integer],
        "cuCtxGetCurrent": [by_reference],
        "cuCtxPushCurrent_v2": [pointer],
        "cuCtxPopCurrent_v2": [by_reference],
        "cuModuleLoadData": [by_reference, ctypes.c_char_p],
        "cuModuleGetFunction": [by_reference, pointer, ctypes.c_char_p],
        "cuFuncSetAttribute": [pointer, integer, integer],
        "cuLaunchKernel": [pointer, *[unsigned] * 7, pointer, pointer, pointer],
        "cuGetErrorName": [integer, ctypes.POINTER(ctypes.c_char_p)],
    }.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, integer
    return lib


class Function:
    """One kernel of a cubin, loaded on each device when first launched there."""

    def __init__(self, cubin: bytes, name: str, op: str, block: tuple[int, int, int], shared_bytes: int,
                 arguments: Sequence[str], lib: Any = None) -> None:
        """``arguments``: "tensor", "int32" or "int64" each."""
        self._cubin, self._name, self.op = cubin, name, op
        self._block, self._shared = block, shared_bytes
        self._lib = library() if lib is None else lib
        # native alignment: parameters of a kernel are laid out as a C struct
        self._pack = struct.Struct("@" + "".join(_FORMATS[kind] for kind in arguments)).pack
        self._handles: dict[int, tuple[int, int]] = {}   # device -> context, function
        self._loading = threading.Lock()

    def launch(self, device: int, stream: int, grid: tuple[int, int, int], values: Sequence[int]) -> None:
        """Enqueue one launch. Raises ValueError for a grid over CUDA's limits, and CudaError."""
        handles = self._handles.get(device)
        if handles is None:
            handles = self._load(device)
        context, function = handles
        if grid[1] > GRID_LIMITS[1] or grid[2] > GRID_LIMITS[2] or grid[0] > GRID_LIMITS[0]:
            raise ValueError(f"{self.op}: a grid of {grid} blocks is over CUDA's limits {GRID_LIMITS}: the source must "
                             "put the largest extent first")
        packed = self._pack(*values)
        size = ctypes.c_size_t(len(packed))
        address = ctypes.cast(packed, ctypes.c_void_p).value   # type: ignore[arg-type]   # bytes are taken too
        extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, address, _BUFFER_SIZE, ctypes.addressof(size), _END)
        lib = self._lib
        pushed = self._enter(context)
        try:
            status = lib.cuLaunchKernel(function, *grid, *self._block, self._shared, stream, None, extra)
        finally:
            if pushed:
                self._leave()
        if status:
            raise CudaError(f"{self.op}: the launch of {grid} blocks of {self._block} threads with {self._shared} "
                            f"bytes of shared memory failed: {self._error(status)}")

    def _load(self, device: int) -> tuple[int, int]:
        with self._loading:
            if device in self._handles:
                return self._handles[device]
            lib = self._lib
            self._must(lib.cuInit(0), "cuInit")
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self._must(lib.cuDeviceGet(ctypes.byref(number), device), "cuDeviceGet")
            self._must(lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "cuDevicePrimaryCtxRetain")
            assert context.value is not None
            pushed = self._enter(context.value)
            try:
                module, function = ctypes.c_void_p(), ctypes.c_void_p()
                status = lib.cuModuleLoadData(ctypes.byref(module), self._cubin)
                if status:
                    raise LoweringError(self.op, "cuda", "load", f"the driver refuses the cubin: {self._error(status)} "
                                        "(a driver older than the CUDA toolkit's may be the cause)")
                self._must(lib.cuModuleGetFunction(ctypes.byref(function), module, self._name.encode()),
                           "cuModuleGetFunction")
                if self._shared > _STATIC_SHARED:
                    self._must(lib.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, self._shared),
                               "cuFuncSetAttribute")
            finally:
                if pushed:
                    self._leave()
            assert function.value is not None
            self._handles[device] = (context.value, function.value)
            return self._handles[device]

    def _enter(self, context: int) -> bool:
        """Make the context current unless it is (a thread that has not used CUDA yet, another device's)."""
        current = ctypes.c_void_p()
        self._must(self._lib.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        if current.value == context:
            return False
        self._must(self._lib.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        return True

    def _leave(self) -> None:
        self._must(self._lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())), "cuCtxPopCurrent")

    def _must(self, status: int, call: str) -> None:
        if status:
            raise CudaError(f"{self.op}: {call} failed: {self._error(status)}")

    def _error(self, status: int) -> str:
        name = ctypes.c_char_p()
        if self._lib.cuGetErrorName(status, ctypes.byref(name)) or name.value is None:
            return f"error {status}"
        return f"{name.value.decode()} ({status})"
