"""Selection: the tensors' device, the environment, use_target; every contradiction is one sentence."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monotile.compat import versions
from monotile.compat.errors import TargetMismatch, ToolchainMissing, UnsupportedOnTarget
from monotile.targets import select
from monotile.targets.select import default_device, resolve, use_target

CPU = torch.zeros(1)


def fake(kind: str, index: int = 0) -> Any:
    """A tensor of a device that is not here, as far as selection looks."""
    return SimpleNamespace(device=SimpleNamespace(type=kind, index=index))


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("KERNEL_TARGET", "KERNEL_BACKEND", "KERNEL_EXECUTOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(select, "npu_name", lambda index=None: None)
    monkeypatch.setattr(versions, "torch_npu", lambda: None)
    monkeypatch.setattr(versions, "cann", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def npu_machine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(select, "npu_name", lambda index=None: name)
    monkeypatch.setattr(versions, "torch_npu", lambda: "2.6.0")
    monkeypatch.setattr(versions, "cann", lambda: "8.3")


def chosen(*tensors: Any) -> tuple[str, str, str]:
    selection = resolve(*tensors)
    return selection.target.name, selection.backend, selection.executor


@pytest.mark.parametrize("asked,expected,backend", [
    (None, "ascend-910b", "npuir"), ("auto", "ascend-910b", "npuir"), ("ascend", "ascend-910b", "npuir"),
    ("ascend-910b", "ascend-910b", "npuir"), ("ascend-910c", "ascend-910c", "npuir"),
    ("ascend-950", "ascend-950", "ascendc"),
])
def test_cpu_tensors_are_emulated(monkeypatch: pytest.MonkeyPatch, asked: str | None, expected: str,
                                  backend: str) -> None:
    if asked:
        monkeypatch.setenv("KERNEL_TARGET", asked)
    assert chosen(CPU) == (expected, backend, "emulator")
    assert default_device() == torch.device("cpu")


def test_cuda_tensors_go_to_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_cuda_capability", lambda index: (9, 0))
    assert chosen(fake("cuda")) == ("cuda-sm90", "cuda", "device")
    monkeypatch.setattr(select, "_cuda_capability", lambda index: (8, 0))
    with pytest.raises(UnsupportedOnTarget, match=r"compute capability 8\.0"):
        resolve(fake("cuda"))


@pytest.mark.parametrize("name,expected", [("Ascend910B3", "ascend-910b"), ("Ascend910_9382", "ascend-910c"),
                                           ("Ascend950PR_9579", "ascend-950")])
def test_npu_tensors_go_to_the_chip_they_are_on(monkeypatch: pytest.MonkeyPatch, name: str, expected: str) -> None:
    npu_machine(monkeypatch, name)
    target, _, executor = chosen(fake("npu"))
    assert (target, executor) == (expected, "device")
    monkeypatch.setenv("KERNEL_TARGET", "ascend")
    assert chosen(fake("npu"))[0] == expected
    assert default_device().type == "npu" if hasattr(torch, "npu") else True


@pytest.mark.parametrize("variables,tensor,words", [
    ({"KERNEL_TARGET": "cuda"}, CPU, "KERNEL_TARGET=cuda, but the tensors are on cpu"),
    ({"KERNEL_TARGET": "ascend-910b"}, fake("cuda"), "KERNEL_TARGET=ascend-910b, but the tensors are on cuda"),
    ({"KERNEL_TARGET": "cuda"}, fake("npu"), "KERNEL_TARGET=cuda, but the tensors are on npu"),
    ({"KERNEL_EXECUTOR": "emulator"}, fake("cuda"), "only Ascend targets are emulated"),
    ({"KERNEL_EXECUTOR": "emulator"}, fake("npu"), "the emulator runs on cpu tensors"),
    ({"KERNEL_BACKEND": "cuda"}, CPU, "KERNEL_BACKEND=cuda is no backend of ascend-910b"),
    ({"KERNEL_BACKEND": "ascendc"}, CPU, "which takes npuir"),
    ({"KERNEL_TARGET": "910b"}, CPU, "KERNEL_TARGET must be one of auto, cuda, ascend"),
    ({"KERNEL_EXECUTOR": "gpu"}, CPU, "KERNEL_EXECUTOR must be one of auto, device, emulator, got 'gpu'"),
    ({}, fake("mps"), "tensors must be on cuda, npu or cpu, these are on mps"),
])
def test_contradictions(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], tensor: Any, words: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TargetMismatch, match=words) as raised:
        resolve(tensor)
    assert "\n" not in str(raised.value)


def test_mixed_devices() -> None:
    with pytest.raises(TargetMismatch, match="on one device, these are on cpu, cuda"):
        resolve(CPU, fake("cuda"))


def test_a_missing_toolchain_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_EXECUTOR", "device")
    with pytest.raises(ToolchainMissing, match=r"torch_npu, which is not installed: pip install 'monotile\[npu\]'"):
        resolve(CPU)
    monkeypatch.setattr(versions, "torch_npu", lambda: "2.6.0")
    with pytest.raises(ToolchainMissing, match="ASCEND_HOME_PATH names no toolkit"):
        resolve(CPU)
    monkeypatch.setattr(versions, "cann", lambda: "8.3")
    with pytest.raises(TargetMismatch, match="the tensors are on cpu: move them to npu"):
        resolve(CPU)


def test_a_chip_that_is_not_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    npu_machine(monkeypatch, "Ascend910B3")
    monkeypatch.setenv("KERNEL_TARGET", "ascend-950")
    with pytest.raises(TargetMismatch, match="on an Ascend910B3, which is ascend-910b"):
        resolve(fake("npu"))
    npu_machine(monkeypatch, "Ascend310P3")
    monkeypatch.delenv("KERNEL_TARGET")
    with pytest.raises(UnsupportedOnTarget, match="calls itself 'Ascend310P3'"):
        resolve(fake("npu"))


def test_use_target_wins_and_nests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_TARGET", "cuda")
    with use_target("ascend-910c"):
        assert chosen(CPU)[0] == "ascend-910c"
        with use_target("ascend-910b"):
            assert chosen(CPU)[0] == "ascend-910b"
        assert chosen(CPU)[0] == "ascend-910c"
    with pytest.raises(TargetMismatch):
        resolve(CPU)


def test_use_target_refuses_what_does_not_exist() -> None:
    with pytest.raises(TargetMismatch, match="must be one of"), use_target("ascend-310"):
        pass
    with pytest.raises(TargetMismatch, match="is no backend of ascend-910b"), use_target("ascend-910b", "ascendc"):
        pass


def test_use_target_is_of_its_thread() -> None:
    seen: dict[str, str] = {}
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(10)
        seen["other"] = chosen(CPU)[0]
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with use_target("ascend-910c"):
        inside.set()
        done.wait(10)
        seen["here"] = chosen(CPU)[0]
    thread.join()
    assert seen == {"here": "ascend-910c", "other": "ascend-910b"}
