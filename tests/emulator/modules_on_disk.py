"""Small kernels as final IR: compiled from modules/*.mlir by bishengir-compile, or written out in generic
form.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from monotile.targets.npuir import toolchain

FOLDER = Path(__file__).parent / "modules"
CHIP, GENERATION, UB_BYTES = "Ascend910B3", "c220", 192 * 1024


@functools.cache
def compiled(name: str) -> str:
    """The vendor's final IR, in generic form, of modules/<name>.mlir."""
    text = (FOLDER / f"{name}.mlir").read_text()
    return toolchain.compile_to_final(text, CHIP, GENERATION, f"test.{name}").generic_ir


def memref(
    shape: Sequence[int | str], element: str, space: str = "ub", strides: Sequence[int] | None = None
) -> str:
    layout = f", strided<[{', '.join(str(s) for s in strides)}]>" if strides else ""
    extents = "".join(f"{n}x" for n in shape)
    return f"memref<{extents}{element}{layout}, #hivm.address_space<{space}>>"


class Written:
    """A function in MLIR's generic form, an operation at a time."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.lines: list[str] = []
        self.count = 0

    def op(self, text: str, result: str = "") -> str:
        """Append an operation, naming its result if it has one."""
        name = ""
        if result:
            self.count += 1
            name = f"%r{self.count}"
            text = f"{name} = {text}"
        self.lines.append(text)
        return name

    def constant(self, value: int | float, type_: str) -> str:
        return self.op(f'"arith.constant"() <{{value = {value} : {type_}}}> : () -> {type_}', "r")

    def buffer(
        self, address: int, shape: Sequence[int], element: str, strides: Sequence[int] | None = None
    ) -> tuple[str, str]:
        """A buffer in UB: its SSA name and type."""
        type_ = memref(shape, element, strides=strides)
        at = self.constant(address, "i64")
        name = self.op(
            f'"hivm.hir.pointer_cast"({at}) <{{operandSegmentSizes = array<i32: 1, 0>}}> : (i64) -> {type_}',
            "r",
        )
        return name, type_

    def call(self, routine: str, *operands: tuple[str, str]) -> None:
        names, types = ", ".join(n for n, _ in operands), ", ".join(t for _, t in operands)
        self.op(f'"func.call"({names}) <{{callee = @{routine}}}> : ({types}) -> ()')

    def text(self, before: str = "") -> str:
        arguments = ", ".join(f"%arg{k}: {t}" for k, t in enumerate(self.arguments))
        body = "\n".join("    " + line for line in [*self.lines, '"func.return"() : () -> ()'])
        return (
            f'{before}"builtin.module"() ({{\n'
            f'  "func.func"() <{{function_type = ({", ".join(self.arguments)}) -> (), '
            'sym_name = "written"}> ({\n'
            f"  ^bb0({arguments}):\n{body}\n"
            "  }) {hacc.entry} : () -> ()\n"
            "}) : () -> ()\n"
        )
