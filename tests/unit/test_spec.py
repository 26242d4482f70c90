"""The chips' numbers: each has a source, and Huawei's own compiler says the same of its parts."""

import copy
import dataclasses
import pickle
import re
import subprocess

import pytest

from monotile.compat.errors import TargetMismatch
from monotile.targets.npuir import toolchain
from monotile.targets.spec import TARGETS, Target, target, target_of_device

ASCEND = [t for t in TARGETS.values() if t.is_ascend]
SIZES = ("vector_cores", "cube_cores", "ub_bytes", "l1_bytes", "l0a_bytes", "l0b_bytes", "l0c_bytes", "block_bytes",
         "vector_bytes", "on_chip_bytes", "hbm_bytes_per_s", "hardware_casts")


@pytest.mark.parametrize("chip", TARGETS.values(), ids=str)
def test_every_number_has_a_source(chip: Target) -> None:
    for name in SIZES:
        if getattr(chip, name):
            assert chip.sources.get(name), f"{chip}: {name}"
    assert chip.unconfirmed <= {f.name for f in dataclasses.fields(Target)}


def test_bandwidths_of_npus_are_marked_unconfirmed() -> None:
    assert all("hbm_bytes_per_s" in chip.unconfirmed for chip in ASCEND)


@pytest.mark.parametrize("chip", TARGETS.values(), ids=str)
def test_a_target_is_one_frozen_object(chip: Target) -> None:
    assert pickle.loads(pickle.dumps(chip)) is chip and copy.deepcopy(chip) is chip
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.vector_cores = 1   # type: ignore[misc]


def test_names() -> None:
    assert target("cuda") is target("cuda-sm90")
    assert target_of_device("Ascend910B4") is target("ascend-910b")
    assert target_of_device("Ascend910_9362") is target("ascend-910c")
    assert target_of_device("Ascend950PR_9599") is target("ascend-950")
    assert target_of_device("Ascend910A") is None
    with pytest.raises(TargetMismatch, match="the targets are cuda, ascend-910b, ascend-910c, ascend-950"):
        target("ascend-910a")


@pytest.mark.parametrize("chip,part", [(chip, part) for chip in ASCEND for part in chip.parts], ids=str)
def test_the_vendors_compiler_says_the_same(chip: Target, part: str) -> None:
    program = toolchain._program("bishengir-opt", chip.generation)
    told = subprocess.run([str(program), f"--hacc-append-device-spec=target={part}"], input="module {}",
                          capture_output=True, text=True, check=True).stdout

    def number(name: str) -> int:
        found = re.search(rf'"{name}", (\d+) : i32', told)
        assert found, f"{name} is not in {told}"
        return int(found.group(1))

    assert number("VECTOR_CORE_COUNT") == chip.parts[part]
    assert chip.vector_cores == chip.parts[chip.chip]
    for name in ("UB", "L1", "L0A", "L0B", "L0C"):
        assert number(f"{name}_SIZE") == 8 * getattr(chip, f"{name.lower()}_bytes"), name
    assert number("UB_ALIGN_SIZE") == 8 * chip.block_bytes
