"""The ``npuir`` backend: emit HIVM, compile it with bishengir-compile, run it in the emulator or on the device.

Files of a compiled kernel: ``final.mlir`` (the vendor's final IR, to read), ``final.generic.mlir`` (the same in
generic form, which the emulator runs), ``kernel.o`` (the device binary, only where CANN's hivmc is on PATH and takes
the final IR) and ``compiled.json`` (compilers, UB bytes, library calls, whether it is double-buffered and linked).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monotile.compat import versions
from monotile.compat.errors import LoweringError, UnsupportedOnTarget
from monotile.targets.backend import Source, signature
from monotile.targets.emulation import emulator_mode, flat_memory
from monotile.targets.npuir import abi, device, toolchain
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

FINAL, GENERIC, BINARY, REPORT = "final.mlir", "final.generic.mlir", "kernel.o", "compiled.json"


class NpuirBackend:
    name = "npuir"

    def lower(self, func: Any, target: Target, op: str) -> Source:
        """AscendNPU-IR text of a PrimFunc. Raises LoweringError naming op, statement and source line."""
        from monotile.targets.npuir.emit import emit

        emitted = emit(func, target.chip, op, target.generation)
        tensors, scalars = signature(func)
        return Source(text=emitted.text, suffix=".mlir", name=emitted.name, tensors=tensors, scalars=scalars)

    def flags(self, target: Target) -> tuple[str, ...]:
        return (f"--target={target.chip}", *toolchain.COMMON_FLAGS, toolchain.MULTI_BUFFER)

    def tool_versions(self) -> tuple[str, ...]:
        found = {toolchain.hivmc_version(generation) for generation in ("c220", "c310")} - {None}
        binaries = (*sorted(map(str, found)), f"CANN {versions.cann()}") if found else ()
        return (f"{toolchain.DISTRIBUTION} {toolchain.version()}", *binaries)

    def compile(self, source: Source, target: Target, directory: Path, op: str) -> None:
        compiled = toolchain.compile_to_final(source.text, target.chip, target.generation, op)
        report: dict[str, Any] = {
            "compiler": f"bishengir-compile of {toolchain.DISTRIBUTION} {toolchain.version()}",
            "chip": target.chip,
            "library_calls": list(compiled.calls),
            "double_buffered": compiled.multi_buffered,
            "linked": compiled.linked,
            "hivmc": toolchain.hivmc_version(target.generation),
            "hivmc_refused": compiled.refused,
        }
        (directory / FINAL).write_text(compiled.final_ir)
        (directory / GENERIC).write_text(compiled.generic_ir)
        if compiled.binary is not None:
            (directory / BINARY).write_bytes(compiled.binary)
        if target.generation == "c220":   # the emulator has this generation's library only
            report["ub_bytes"] = _program(directory, target, op).ub_used
        (directory / REPORT).write_text(json.dumps(report, indent=1))

    def accepted(self, directory: Path) -> str | None:
        told = json.loads((directory / REPORT).read_text())
        return str(told["compiler"]) + ("" if told["linked"] else ", not linked")   # refusals have no files

    def explain(self, source: Source) -> dict[str, Any]:
        """How often each operation is written, loops aside."""
        operations = Counter(re.findall(r"\bhivm\.hir\.(\w+)", source.text))
        return {"operations": dict(sorted(operations.items()))}

    def load(self, source: Source, target: Target, directory: Path, executor: str,
             op: str) -> Callable[[Sequence[torch.Tensor]], None]:
        if executor == "device":
            code = device.binary(source, target, directory / BINARY, op)
            return device.runner(source, target, code, (directory / FINAL).read_text(), op)
        if target.generation != "c220":
            raise UnsupportedOnTarget(f"{op}: the AscendNPU-IR emulator has the vector library of 910B and 910_93xx "
                                      f"only; {target.name} is compiled and not executed here")
        program = _program(directory, target, op)

        def run(tensors: Sequence[torch.Tensor]) -> None:
            arguments = abi.pack([flat_memory(t) for t in tensors], [s.value_from(tensors) for s in source.scalars])
            program.run(arguments, blocks=target.vector_cores, checked=emulator_mode() == "checked")

        return run


def _program(directory: Path, target: Target, op: str) -> Any:
    from monotile.targets.npuir.emulator import Program

    try:
        return Program.from_ir((directory / GENERIC).read_text(), op=op, ub_bytes=target.ub_bytes)
    except OSError as error:
        raise LoweringError(op=op, target=target.name, stage="load",
                            reason=f"{directory / GENERIC} cannot be read: {error}") from error
