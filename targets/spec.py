"""The chips monotile builds for: frozen facts, each with its source.

Sources, by the letters used below:

    V  what Huawei's own compiler says of the part: ``bishengir-opt --hacc-append-device-spec=target=PART`` of
       ascendnpu-ir 1.2.0 (``-a5`` for the 950); a unit test asks it again.
    A  the AscendC API reference and hicann/catlass (include/acot/arch/arch.hpp): 32-byte blocks, 256-byte vector
       registers, the UB that the runtime keeps for itself.
    C  NVIDIA's CUDA C++ programming guide, compute capability 9.0, and the H200 data sheet.
    P  press and vendor slides: not confirmed by a measurement of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from monotile.compat.errors import TargetMismatch

KIB = 1024


@dataclass(frozen=True)
class Target:
    """A chip. Sizes are bytes and per core. ``unconfirmed`` names the fields that no measurement or tool backs."""

    name: str                        # "ascend-910b"
    kernel_target: str               # the value of KERNEL_TARGET that names it
    device_type: str                 # torch's name for the device: "cuda" or "npu"
    default_backend: str
    backends: tuple[str, ...]        # every backend allowed, the default first
    arch: str                        # the code generator's name of the instruction set
    vector_cores: int                # cores a persistent grid is spread over (SMs on CUDA)
    cube_cores: int
    vector_bytes: int                # one vector register (a warp's 32 lanes of 4 bytes on CUDA)
    block_bytes: int                 # unit of on-chip addresses and of DMA (a sector on CUDA)
    on_chip_bytes: int               # what one tile may keep on chip
    hardware_casts: frozenset[str]   # low-bit conversions a kernel may leave to the chip; see compat.capability
    hbm_bytes_per_s: float
    chip: str = ""                   # bishengir-compile's --target, and the part whose cores are counted above
    generation: str = ""             # the vendor library's name of the instruction set: "c220" or "c310"
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)   # every part built for -> its vector cores
    part_pattern: str = ""           # device names that are this target
    ub_bytes: int = 0
    l1_bytes: int = 0
    l0a_bytes: int = 0
    l0b_bytes: int = 0
    l0c_bytes: int = 0
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    unconfirmed: frozenset[str] = frozenset()

    @property
    def is_ascend(self) -> bool:
        return self.device_type == "npu"

    def is_part(self, device_name: str) -> bool:
        """Is a device of this name (``torch_npu.npu.get_device_name()``) this target?"""
        return bool(self.part_pattern) and re.match(self.part_pattern, device_name) is not None

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return target, (self.name,)   # one instance each, in every process


_ASCEND_SOURCES = MappingProxyType({
    "vector_cores": "V", "cube_cores": "V", "ub_bytes": "V", "l1_bytes": "V", "l0a_bytes": "V", "l0b_bytes": "V",
    "l0c_bytes": "V", "block_bytes": "V", "parts": "V", "vector_bytes": "A", "on_chip_bytes": "A",
    "hardware_casts": "A", "hbm_bytes_per_s": "P",
})

# 8 KiB of UB are not a tile's: the vector library's temporaries and spilled scalars.
_UB_KEPT = 8 * KIB

CUDA_SM90 = Target(
    name="cuda-sm90", kernel_target="cuda", device_type="cuda",
    default_backend="cuda", backends=("cuda",),
    arch="sm_90",
    vector_cores=132, cube_cores=132,
    vector_bytes=128, block_bytes=32,
    # fragments live in registers (64 Ki of 32 bits), shared buffers in 227 KiB of shared memory
    on_chip_bytes=256 * KIB + 227 * KIB,
    hardware_casts=frozenset({"e4m3", "e4m3_nan"}),   # cvt to e2m1 begins with sm_100
    hbm_bytes_per_s=4.8e12,
    sources=MappingProxyType({
        "vector_cores": "C", "cube_cores": "C", "vector_bytes": "C", "block_bytes": "C", "on_chip_bytes": "C",
        "hardware_casts": "C (PTX ISA, cvt)", "hbm_bytes_per_s": "C; a device copy was measured at 4.22e12 B/s"}),
)

ASCEND_910B = Target(
    name="ascend-910b", kernel_target="ascend-910b", device_type="npu",
    default_backend="npuir", backends=("npuir",),
    arch="dav-c220", generation="c220", chip="Ascend910B3",
    parts=MappingProxyType({"Ascend910B1": 48, "Ascend910B2": 48, "Ascend910B3": 40, "Ascend910B4": 40}),
    part_pattern=r"Ascend910B\d",
    vector_cores=40, cube_cores=20,
    vector_bytes=256, block_bytes=32,
    ub_bytes=192 * KIB, on_chip_bytes=192 * KIB - _UB_KEPT,
    l1_bytes=512 * KIB, l0a_bytes=64 * KIB, l0b_bytes=64 * KIB, l0c_bytes=128 * KIB,
    hardware_casts=frozenset(),
    hbm_bytes_per_s=1.6e12,
    sources=_ASCEND_SOURCES, unconfirmed=frozenset({"hbm_bytes_per_s"}),
)

ASCEND_910C = Target(
    name="ascend-910c", kernel_target="ascend-910c", device_type="npu",
    default_backend="npuir", backends=("npuir",),
    arch="dav-c220", generation="c220", chip="Ascend910_9392",
    parts=MappingProxyType({"Ascend910_9362": 40, "Ascend910_9372": 40, "Ascend910_9381": 48, "Ascend910_9382": 48,
                            "Ascend910_9391": 48, "Ascend910_9392": 48}),
    part_pattern=r"Ascend910_93\d\d",
    vector_cores=48, cube_cores=24,
    vector_bytes=256, block_bytes=32,
    ub_bytes=192 * KIB, on_chip_bytes=192 * KIB - _UB_KEPT,
    l1_bytes=512 * KIB, l0a_bytes=64 * KIB, l0b_bytes=64 * KIB, l0c_bytes=128 * KIB,
    hardware_casts=frozenset(),
    hbm_bytes_per_s=1.6e12,   # one of the package's two dies, which is one device
    sources=_ASCEND_SOURCES, unconfirmed=frozenset({"hbm_bytes_per_s"}),
)

ASCEND_950 = Target(
    name="ascend-950", kernel_target="ascend-950", device_type="npu",
    default_backend="ascendc", backends=("ascendc", "npuir"),
    arch="dav-c310", generation="c310", chip="Ascend950PR_9579",   # also written dav-3510
    parts=MappingProxyType({"Ascend950PR_9579": 56, "Ascend950PR_958b": 64, "Ascend950PR_9599": 72,
                            "Ascend950DT_9581": 64}),
    part_pattern=r"Ascend950|Ascend910_95",   # CANN's early releases called it 910_95
    vector_cores=56, cube_cores=28,
    vector_bytes=256, block_bytes=32,
    # SIMT code keeps 32 KiB of the 248 as its data cache; kernels here must fit either way
    ub_bytes=248 * KIB, on_chip_bytes=216 * KIB,
    l1_bytes=512 * KIB, l0a_bytes=64 * KIB, l0b_bytes=64 * KIB, l0c_bytes=256 * KIB,
    # The chip converts to e2m1 too, but from bf16 only: an f32 would round twice, so kernels use integer code. Its
    # saturating conversion to e4m3 turns NaN to 0 unless a mode bit is set, which no kernel can count on.
    hardware_casts=frozenset({"e4m3"}),
    hbm_bytes_per_s=1.6e12,
    sources=_ASCEND_SOURCES, unconfirmed=frozenset({"hbm_bytes_per_s", "hardware_casts"}),
)

TARGETS: Mapping[str, Target] = MappingProxyType(
    {t.name: t for t in (CUDA_SM90, ASCEND_910B, ASCEND_910C, ASCEND_950)})


def target(name: str) -> Target:
    """The target of a name (``ascend-910b``; ``cuda`` and ``cuda-sm90`` are one). Raises TargetMismatch."""
    for candidate in TARGETS.values():
        if name in (candidate.name, candidate.kernel_target):
            return candidate
    names = ", ".join(t.kernel_target for t in TARGETS.values())
    raise TargetMismatch(f"there is no target {name!r}; the targets are {names}")


def target_of_device(device_name: str) -> Target | None:
    """The Ascend target of a device name such as ``Ascend910B3``; None for a chip that monotile does not build for."""
    return next((t for t in TARGETS.values() if t.is_part(device_name)), None)
