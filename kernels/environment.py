"""What is selected and what is installed, in words: pytest's header and ``monotile targets`` print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monotile.compat import versions
from monotile.compat.errors import MonotileError
from monotile.targets.ascendc import bisheng
from monotile.targets.select import chip_here, resolve
from monotile.targets.spec import TARGETS, Target

_GET = {
    "tilelang": "pip install 'tilelang>=0.1.15'",
    "ascendnpu-ir": "pip install 'monotile[emulator]'",
    "nvcc": "install the CUDA toolkit and put nvcc on PATH",
    "torch_npu": "pip install 'monotile[npu]' on a machine with an Ascend NPU",
    "CANN": "install Huawei's CANN toolkit and source its set_env.sh",
    "hivmc": "comes with CANN: source its set_env.sh",
    "bisheng": "comes with CANN: source its set_env.sh",
    "C++ compiler": "apt install g++, for the emulator of the 950",
}


def found() -> dict[str, str | None]:
    """Version (or path) of every tool that a target may need; None for what is not here. Starts no device."""
    return {"torch": versions.torch(), "tilelang": versions.tilelang(), "ascendnpu-ir": versions.ascendnpu_ir(),
            "nvcc": versions.nvcc(), "torch_npu": versions.torch_npu(), "CANN": versions.cann(),
            "hivmc": versions.hivmc(), "bisheng": bisheng.program(), "C++ compiler": versions.cxx()}


def report() -> list[str]:
    """Lines: the selection, the versions, what is missing and how to get it."""
    here = found()
    try:
        chosen = resolve()
        lines = [f"monotile: target {chosen.target}, backend {chosen.backend}, executor {chosen.executor}"]
    except MonotileError as error:
        lines = [f"monotile: nothing can run: {error}"]
    lines.append("monotile: " + ", ".join(f"{name} {version}" for name, version in here.items() if version))
    missing = [name for name, version in here.items() if version is None]
    if missing:
        lines.append("monotile: missing: " + "; ".join(f"{name} ({_GET[name]})" for name in missing))
    return lines


def targets() -> list[dict[str, Any]]:
    """What is known of every target and what can be done with it here, for programs."""
    here = found()
    return [{"name": t.name, "chip": t.chip or t.arch, "backends": list(t.backends), "on_chip_bytes": t.on_chip_bytes,
             "vector_cores": t.vector_cores, "here": _here(t, here)} for t in TARGETS.values()]


def _here(target: Target, tools: Mapping[str, str | None]) -> dict[str, bool]:
    import torch

    if not target.is_ascend:
        return {"lower": tools["tilelang"] is not None, "compile": tools["nvcc"] is not None,
                "emulate": False, "run": torch.cuda.is_available()}
    lowers, compiles = tools["tilelang"] is not None, tools["ascendnpu-ir"] is not None
    # the 950's text is emulated by the host's C++ compiler
    emulates = compiles if target.default_backend == "npuir" else lowers and tools["C++ compiler"] is not None
    makes_binaries = tools["hivmc" if target.default_backend == "npuir" else "bisheng"] is not None
    return {"lower": lowers, "compile": compiles, "emulate": emulates,
            "run": makes_binaries and chip_here() is target}
