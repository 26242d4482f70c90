"""The ``ascendc`` backend: TileLang's Ascend backend behind our passes, an emulator of its text, bisheng where it is.

Files of a compiled kernel: ``fast.so`` or ``checked.so`` (the emulator's build of the mode asked for),
``compiled.json`` (threads, UB bytes, regions, whether bisheng accepted the text) and, where CANN is installed,
``kernel.aibin``, the device binary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import ToolchainMissing
from monotile.targets.ascendc import bisheng
from monotile.targets.backend import Source, signature
from monotile.targets.emulation import emulator_mode, flat_memory
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

BINARY, REPORT = "kernel.aibin", "compiled.json"
_MARK = "// lowered: "


class AscendcBackend:
    name = "ascendc"

    def lower(self, func: Any, target: Target, op: str) -> Source:
        """AscendC text of a PrimFunc, which ends with a comment that says how it came about. Raises LoweringError."""
        from monotile.targets.ascendc.lowering import lower_to_text

        made = lower_to_text(func, target, op)
        tensors, scalars = signature(func)
        about = {"blocks": made.launch.blocks, "dynamic_ub_bytes": made.launch.dynamic_ub_bytes,
                 "threads": made.threads, "ub_bytes": made.ub_bytes, "tiles_in_flight": made.stages,
                 "regions": made.regions, "kept_in_ub": made.spilled}
        return Source(text=f"{made.text.rstrip()}\n{_MARK}{json.dumps(about)}\n", suffix=".cpp", name=made.name,
                      tensors=tensors, scalars=scalars)

    def flags(self, target: Target) -> tuple[str, ...]:
        from monotile.targets.ascendc.emulator import host

        return (target.arch, str(target.ub_bytes), host.fingerprint(), emulator_mode())

    def tool_versions(self) -> tuple[str, ...]:
        from monotile.targets.ascendc.emulator import host

        return (host.compiler_version(), f"bisheng {bisheng.version()}")

    def compile(self, source: Source, target: Target, directory: Path, op: str) -> None:
        from monotile.targets.ascendc.emulator import host

        host.build(source.text, target.ub_bytes, directory, op, target.name, emulator_mode())
        accepted = bisheng.build(directory / f"source{source.suffix}", directory / BINARY, target, op)
        report = {**explain(source.text), "accepted_by_bisheng": accepted}
        (directory / REPORT).write_text(json.dumps(report, indent=1))

    def accepted(self, directory: Path) -> str | None:
        taken = json.loads((directory / REPORT).read_text())["accepted_by_bisheng"]
        return "bisheng" if taken else None

    def explain(self, source: Source) -> dict[str, Any]:
        return explain(source.text)

    def load(self, source: Source, target: Target, directory: Path, executor: str,
             op: str) -> Callable[[Sequence[torch.Tensor]], None]:
        if executor == "device":
            return self._on_device(source, target, directory, op)
        from monotile.targets.ascendc.emulator.host import Program

        if not (directory / f"{emulator_mode()}.so").exists():   # only where it was compiled ahead of time
            raise ToolchainMissing(f"{directory} has no {emulator_mode()}.so, the emulator's build of {op} for "
                                   f"MONOTILE_EMULATOR={emulator_mode()}: set the mode that it was compiled in, or "
                                   "compile it again in this one")
        program = Program(directory, source.text, op)
        names = [t.name for t in source.tensors]

        def run(tensors: Sequence[torch.Tensor]) -> None:
            arrays = dict(zip(names, map(flat_memory, tensors)))
            numbers = {s.name: s.value_from(tensors) for s in source.scalars}
            program.run(arrays, numbers, blocks=target.vector_cores, checked=emulator_mode() == "checked")

        return run

    def _on_device(self, source: Source, target: Target, directory: Path,
                   op: str) -> Callable[[Sequence[torch.Tensor]], None]:
        from monotile.targets.ascendc import device

        if not (directory / BINARY).exists():
            raise ToolchainMissing(f"a binary for {target.name} needs CANN's bisheng, which was looked for on PATH and "
                                   "in ASCEND_HOME_PATH: install CANN and source its set_env.sh, or set "
                                   "KERNEL_EXECUTOR=emulator and use cpu tensors")
        told = explain(source.text)
        return device.runner(source, target, (directory / BINARY).read_bytes(), told["blocks"],
                             told["dynamic_ub_bytes"], op)


def explain(text: str) -> dict[str, Any]:
    """How a text came about: blocks, threads, UB bytes, tiles in flight, the regions, registers that are kept in UB."""
    line = text.rstrip().rsplit("\n", 1)[-1]
    told: dict[str, Any] = json.loads(line.removeprefix(_MARK))
    return told
