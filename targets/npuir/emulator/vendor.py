"""Run the vendor's own library bodies on this CPU: the oracle for library.py.

The wheel `ascendnpu-ir` holds its library as LLVM bitcode, in which every entry is defined down to the vector
instructions of the chip (`llvm.hivm.*` intrinsics). An entry and what it calls is cut out, its instructions
are renamed, the rest is compiled for this machine with llvmlite, and the instructions are executed here, over
an arena that stands for UB. What comes out is the vendor's own order of operations; what is ours is the
meaning of single instructions (mask, repeat, block and repeat strides, as Huawei's AscendC documentation
describes them).

Slow, and only for tests and for counting instructions. Needs llvmlite and ascendnpu-ir.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np

from monotile.compat.errors import MonotileError, ToolchainMissing

from .library import bf16_to_f32, round_to_bf16, round_to_float

UB_BYTES = 192 * 1024
_BASE = 0x10000000  # below 2**31 and a multiple of 2**24: bodies keep addresses in 16 to 32 bits
BLOCK = 32
REPEAT = 256


class VendorBodyFailed(MonotileError, RuntimeError):
    """A vendor body trapped, or used an instruction in a way that the chip would not execute."""


@dataclass
class Trace:
    """The instructions that one call executed: names with their arguments, UB addresses as offsets."""

    instructions: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, _ in self.instructions:
            counts[name] = counts.get(name, 0) + 1
        return counts


# ---------------------------------------------------------------------------------------------- the bitcode


class Library:
    """The entries of one bitcode file."""

    def __init__(self, path: Path) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # Printed whole and cut up: printing functions one by one numbers the module's metadata each time.
        text = str(llvm.parse_bitcode(path.read_bytes()))
        self.types = "\n".join(re.findall(r"^%[^\n]* = type [^\n]*", text, re.MULTILINE))
        self.globals = {
            m[1].strip('"'): m[0] for m in re.finditer(rf"^@{_NAME} = [^\n]*", text, re.MULTILINE)
        }
        self.declared = {
            m[1].strip('"'): m[0]
            for m in re.finditer(rf"^declare [^@\n]*@{_NAME}\([^\n]*", text, re.MULTILINE)
        }
        self.defined: dict[str, str] = {}
        for match in re.finditer(rf"^define [^@\n]*@{_NAME}\(", text, re.MULTILINE):
            end = text.index("\n}\n", match.start())
            self.defined[match[1].strip('"')] = text[match.start() : end + 3]
        self.plain: dict[str, str] = {}

    def entries(self) -> list[str]:
        prefix = "_mlir_ciface_"
        return sorted(n.removeprefix(prefix) for n in self.defined if n.startswith(prefix))

    def text(self, name: str) -> str:
        text = self.plain.get(name)
        if text is None:
            text = self.plain[name] = _plain(self.defined.get(name) or self.declared[name])
        return text

    def closure(self, entries: Sequence[str]) -> tuple[str, list[str]]:
        """LLVM IR of functions and all they need, and the names of the instructions these may execute."""
        pending = list(entries)
        defined: dict[str, str] = {}
        declared: dict[str, str] = {}
        data: dict[str, str] = {}
        while pending:
            name = pending.pop()
            if name in defined or name in declared or name in data:
                continue
            if name in self.defined:
                defined[name] = self.text(name)
                pending += [m.strip('"') for m in re.findall(f"@{_NAME}", defined[name])]
            elif name in self.declared:
                declared[name] = self.text(name)
            elif name in self.globals:
                data[name] = _plain(self.globals[name])
        # some bodies read a descriptor through a null pointer, which the chip allows, and never use what they
        # read
        parts = [self.types, *data.values(), *declared.values(), *defined.values()]
        text = "\n".join(parts).replace("@llvm.hivm.", "@hivm.")
        text = re.sub(r"(store ptr|ptr noundef) null", r"\1 @nothing", text)
        text = "@nothing = global [64 x i64] zeroinitializer\n" + text
        return text, [n for n in declared if not n.startswith("llvm.") or n.startswith("llvm.hivm.")]


_NAME = r'("[^"]+"|[\w.$]+)'


def _plain(text: str) -> str:
    """LLVM IR without metadata, attributes, comdats and address spaces."""
    lines = []
    for line in text.split("\n"):
        if line.startswith("; "):
            continue
        line = line.partition(", !")[0]  # metadata ends a line
        if line.startswith("define"):
            line = line.replace("linkonce_odr dso_local", "internal").replace(
                "weak_odr dso_local", "internal"
            )
        if "#" in line or " comdat" in line:
            line = _ATTRIBUTES.sub("", line)
        lines.append(line)
    text = _SPACES.sub("", "\n".join(lines))
    return text.replace("addrspacecast (ptr inttoptr (i64 -1 to ptr) to ptr)", "inttoptr (i64 -1 to ptr)")


_ATTRIBUTES = re.compile(r" #\d+| comdat(?:\(\$[^)]*\))?| captures\(\w+\)")
_SPACES = re.compile(r" addrspace\(\d+\)")


@lru_cache(maxsize=1)
def library() -> Library:
    """The vector library for the 910B family. Errors: ToolchainMissing without ascendnpu-ir."""
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainMissing("the package ascendnpu-ir is not installed")
    return Library(Path(next(iter(spec.submodule_search_locations))) / "lib" / "meta_op.aiv.c220.bc")


# ---------------------------------------------------------------------------------------------- the machine


def _map_arena() -> np.ndarray:
    """UB at a low address that is a multiple of 2**24."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    for base in range(_BASE, 0x70000000, 1 << 24):
        address = libc.mmap(base, UB_BYTES + 4096, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if address == base:
            buffer = (ctypes.c_uint8 * UB_BYTES).from_address(base)
            return np.ctypeslib.as_array(buffer)
        libc.munmap(ctypes.c_void_p(address), UB_BYTES + 4096)
    raise VendorBodyFailed("no low address is free for UB")


_CTYPES: dict[str, Any] = {
    "void": None,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "i16": ctypes.c_int16,
    "i8": ctypes.c_int8,
    "i1": ctypes.c_bool,
    "ptr": ctypes.c_int64,
    "float": ctypes.c_float,
    "half": ctypes.c_uint16,
    "bfloat": ctypes.c_uint16,
}


class Machine:
    """UB, the registers that vector instructions use, and the compiled entries."""

    def __init__(self) -> None:
        self.ub = _map_arena()
        self.base = int(self.ub.ctypes.data)
        self.compiled: dict[str, int] = {}
        self.kept: list[Any] = []
        self.trace = Trace()
        self.error: BaseException | None = None
        self.reset()

    def reset(self) -> None:
        self.mask = [(1 << 64) - 1, (1 << 64) - 1]
        self.control = 0
        self.pad_value = 0
        self.select_mask = 0
        self.addresses = [[0] * 8 for _ in range(8)]
        self.extreme = 0

    # ---- compiling
    def compile(self, entries: Sequence[str]) -> None:
        """Compile entries for this machine, those together that are not yet."""
        entries = [e for e in entries if e not in self.compiled]
        if not entries:
            return
        text, instructions = library().closure([f"_mlir_ciface_{e}" for e in entries])
        module = llvm.parse_assembly(_bits_of_halves(text))
        module.triple = llvm.get_default_triple()
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=0
        )
        engine = llvm.create_mcjit_compiler(module, machine)
        for name in instructions:
            target = module.get_function(name.replace("llvm.hivm.", "hivm."))
            callback = self.callback(name, target)
            engine.add_global_mapping(target, ctypes.cast(callback, ctypes.c_void_p).value)
            self.kept.append(callback)
        engine.finalize_object()
        self.kept.append((engine, module))
        for entry in entries:
            self.compiled[entry] = engine.get_function_address(f"_mlir_ciface_{entry}")

    def callback(self, name: str, function: Any) -> Any:
        match = re.search(r"declare (?:\w+ )*?(void|i\d+|ptr|half|float) @[\w.]+\((.*?)\)", str(function))
        assert match, str(function)
        arguments = [a.strip().split(" ")[0] for a in match[2].split(",") if a.strip()]
        short = name.removeprefix("llvm.hivm.")
        execute = _INSTRUCTIONS.get(short)

        def run(*values: Any) -> Any:
            if self.error is not None:
                return 0
            try:
                self.trace.instructions.append((short, values))
                if execute is None:
                    what = "instruction" if name.startswith("llvm.") else "undefined function"
                    raise VendorBodyFailed(f"{what} {short} has no meaning here")
                return execute(self, *values) or 0
            except BaseException as error:  # must not cross the compiled code
                self.error = error
                return 0

        return ctypes.CFUNCTYPE(_CTYPES[match[1]], *[_CTYPES[a] for a in arguments])(run)

    # ---- calling
    def memref(self, address: int, sizes: Sequence[int], strides: Sequence[int]) -> int:
        """A descriptor in memory; `address` is absolute."""
        data = np.array([address, address, 0, *sizes, *strides], np.int64)
        self.kept.append(data)
        return int(data.ctypes.data)

    def signature(self, entry: str) -> list[tuple[str, str]]:
        """(LLVM type, name) of an entry's parameters."""
        match = re.search(
            r"^define [^\n]*@_mlir_ciface_\w+\((.*?)\) *\{", library().text(f"_mlir_ciface_{entry}"), re.M
        )
        assert match, entry
        return [(p.split(" ")[0], p.split("%")[1]) for p in match[1].split(", ")]

    def call(self, entry: str, arguments: Sequence[Any]) -> Trace:
        """Call an entry with addresses of descriptors and scalars; half and bfloat scalars as their bits.

        Errors: VendorBodyFailed.
        """
        self.compile([entry])
        address = self.compiled[entry]
        self.reset()
        self.trace, self.error = Trace(), None
        types, values = [], []
        for (type_, _), value in zip(self.signature(entry), arguments, strict=True):
            if type_ == "bfloat":
                type_ = "i16"
            if type_ == "half":  # passed in the low half of a float register
                type_, value = "float", float(np.array([int(value) & 0xFFFF], np.uint32).view(np.float32)[0])
            types.append(_CTYPES[type_])
            values.append(value)
        with np.errstate(all="ignore"):
            ctypes.CFUNCTYPE(None, *types)(address)(*values)
        if self.error is not None:
            raise VendorBodyFailed(f"{entry}: {type(self.error).__name__}: {self.error}") from self.error
        return self.trace

    # ---- UB
    def offset(self, address: int) -> int:
        offset = (address & 0xFFFFFFFF) - self.base
        if not 0 <= offset < UB_BYTES:
            raise VendorBodyFailed(f"address {address:#x} is not in UB")
        return offset

    def aligned(self, address: int, unit: int = BLOCK) -> int:
        offset = self.offset(address)
        if offset % unit:
            raise VendorBodyFailed(f"UB byte {offset} is no multiple of {unit}")
        return offset

    def array(self, dtype: Any) -> np.ndarray:
        return self.ub.view(dtype)

    # ---- masks
    @property
    def counting(self) -> bool:
        """Counter mode: the mask register is a number of elements, and `repeat` is not used."""
        return bool(self.control >> 56 & 1)

    def lanes(self, repeat: int, elements: int) -> np.ndarray:
        """(repeats, elements) bools: the lanes that take part."""
        if self.counting:
            count = self.mask[0]
            repeats = -(-count // elements)
            return (np.arange(repeats * elements) < count).reshape(repeats, elements)
        bits = np.array(self.mask, np.uint64).view(np.uint8)
        lanes = np.unpackbits(bits, bitorder="little")[:elements].astype(bool)
        return np.broadcast_to(lanes, (repeat, elements))

    def indices(
        self, address: int, size: int, repeats: int, elements: int, block: int, repeat: int
    ) -> np.ndarray:
        """Element numbers in UB of every lane; strides in blocks of 32 bytes."""
        start = self.aligned(address)
        lane = np.arange(elements)
        in_block = BLOCK // size
        offsets = lane // in_block * (block * BLOCK) + lane % in_block * size
        all_offsets = start + np.arange(repeats)[:, None] * (repeat * BLOCK) + offsets
        if all_offsets.size and int(all_offsets.max()) >= UB_BYTES:
            raise VendorBodyFailed("an instruction reaches beyond UB")
        return all_offsets // size


def _bits_of_halves(text: str) -> str:
    """Pass halves to instructions as i16, which ctypes knows, and make every bfloat an i16: bodies only move
    them.
    """
    text = re.sub(r"\bbfloat (noundef )?0xR([0-9A-F]{4})", lambda m: f"i16 {m[1] or ''}{int(m[2], 16)}", text)
    text = re.sub(r"\bbfloat 0\.0+e\+00", "i16 0", text)
    text = re.sub(r"\bbfloat\b", "i16", text)
    lines = []
    for number, line in enumerate(text.split("\n")):
        if "@hivm." in line and re.search(r"\bhalf\b", line):
            if line.lstrip().startswith("declare"):
                line = re.sub(r"\bhalf\b(?! @)", "i16", line)
            else:
                call = re.search(r"\bhalf (?:noundef )?([%\w.]+)", line)
                assert call, line
                if call[1].startswith("%"):
                    lines.append(f"  %bits.{number} = bitcast half {call[1]} to i16")
                    line = line.replace(call[0], f"i16 %bits.{number}")
                else:
                    line = line.replace(call[0], f"i16 bitcast (half {call[1]} to i16)")
        lines.append(line)
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------- instructions

_INSTRUCTIONS: dict[str, Callable[..., Any]] = {}
_F = {
    "f32": np.float32,
    "f16": np.float16,
    "s32": np.int32,
    "s16": np.int16,
    "u32": np.uint32,
    "u16": np.uint16,
}


def _u64(value: int) -> int:
    return value & ((1 << 64) - 1)


def _bits(value: int, low: int, high: int) -> int:
    return (value & ((1 << 64) - 1)) >> low & ((1 << (high - low)) - 1)


def instruction(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(execute: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _INSTRUCTIONS[name] = execute
        return execute

    return register


@instruction("SET.FLAG.IMM", "WAIT.FLAG.IMM", "BARRIER", "DCCI")
def _ordering(machine: Machine, *_: int) -> None:
    """Pipes run in order here."""


@instruction("TRAP")
def _trap(machine: Machine) -> None:
    raise VendorBodyFailed("the body trapped: it refuses these operands")


@instruction("GET.CTRL")
def _get_control(machine: Machine) -> int:
    return machine.control


@instruction("SET.CTRL")
def _set_control(machine: Machine, value: int) -> None:
    machine.control = _u64(value)


@instruction("SBITSET0")
def _clear_bit(machine: Machine, value: int, bit: int) -> int:
    return value & ~(1 << bit)


@instruction("SBITSET1")
def _set_bit(machine: Machine, value: int, bit: int) -> int:
    return value | 1 << bit


@instruction("MOVEMASK")
def _move_mask(machine: Machine, half: int, value: int) -> None:
    machine.mask[half] = _u64(value)


@instruction("SET.MOV.PAD.VAL")
def _set_pad_value(machine: Machine, value: int) -> None:
    machine.pad_value = _u64(value)


@instruction("SET.CMPMASK")
def _set_select_mask(machine: Machine, pointer: int) -> None:
    offset = machine.aligned(pointer, 8)
    machine.select_mask = int(machine.array(np.int64)[offset // 8])


@instruction("GET.MAX.MIN.CNT")
def _get_extreme(machine: Machine) -> int:
    return machine.extreme


@instruction("MOVEVA")
def _move_addresses(machine: Machine, register: int, at: int, first: int, second: int) -> None:
    machine.addresses[register][at : at + 2] = [first, second]


# ---- elementwise


def _apply(
    machine: Machine,
    compute: Callable[..., Any],
    target: tuple[int, Any, int, int],
    sources: Sequence[tuple[int, Any, int, int]],
    repeat: int,
) -> None:
    """Every operand is (address, dtype, block stride, repeat stride)."""
    sizes = [np.dtype(o[1]).itemsize for o in (target, *sources)]
    elements = REPEAT // max(sizes)
    lanes = machine.lanes(repeat, elements)
    repeats = lanes.shape[0]
    if repeats == 0:
        return
    where = machine.indices(target[0], sizes[0], repeats, elements, target[2], target[3])
    inputs = [
        (machine.array(o[1]), machine.indices(o[0], s, repeats, elements, o[2], o[3]))
        for o, s in zip(sources, sizes[1:], strict=True)
    ]
    out = machine.array(target[1])
    for r in range(repeats):  # in turn: a repeat may read what an earlier one wrote
        active = lanes[r]
        out[where[r][active]] = compute(*[a[i[r][active]] for a, i in inputs])


def _vector_config(config: int) -> tuple[int, int, int, int, int]:
    """Repeat, destination block and repeat stride, source block and repeat stride of a one-source
    instruction.
    """
    return (
        _bits(config, 56, 64),
        _bits(config, 0, 16),
        _bits(config, 32, 40) | _bits(config, 52, 56) << 8,
        _bits(config, 16, 32),
        _bits(config, 40, 52),
    )


def _binary(compute: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    def execute(machine: Machine, target: int, first: int, second: int, config: int) -> None:
        _apply(
            machine,
            compute,
            (target, dtype, _bits(config, 0, 8), _bits(config, 24, 32)),
            [
                (first, dtype, _bits(config, 8, 16), _bits(config, 32, 40)),
                (second, dtype, _bits(config, 16, 24), _bits(config, 40, 48)),
            ],
            _bits(config, 56, 64),
        )

    return execute


def _unary(compute: Callable[..., Any], source_dtype: Any, dtype: Any) -> Callable[..., Any]:
    def execute(machine: Machine, target: int, source: int, config: int) -> None:
        repeat, block, step, source_block, source_step = _vector_config(config)
        _apply(
            machine,
            compute,
            (target, dtype, block, step),
            [(source, source_dtype, source_block, source_step)],
            repeat,
        )

    return execute


def _scalar(value: Any, dtype: Any) -> Any:
    """An instruction's scalar as one element: halves arrive as bits, integers as i64."""
    if dtype == np.float16 or np.dtype(dtype).kind in "iu":
        bits = np.array([_u64(int(value))], np.uint64)
        return bits.view(dtype)[0]
    return dtype(value)


def _with_scalar(compute: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    def execute(machine: Machine, target: int, source: int, value: Any, config: int, *_: int) -> None:
        repeat, block, step, source_block, source_step = _vector_config(config)
        scalar = _scalar(value, dtype)
        _apply(
            machine,
            lambda a: compute(a, scalar),
            (target, dtype, block, step),
            [(source, dtype, source_block, source_step)],
            repeat,
        )

    return execute


def _fill(dtype: Any) -> Callable[..., Any]:
    def execute(machine: Machine, target: int, value: Any, config: int) -> None:
        repeat, block, step, _, _ = _vector_config(config)
        if dtype == "bf16":
            scalar, kind = np.uint16(int(value) & 0xFFFF), np.uint16
        else:
            scalar, kind = _scalar(value, dtype), dtype
        _apply(machine, lambda: scalar, (target, kind, block, step), [], repeat)

    return execute


_VECTOR = {"VADD": np.add, "VSUB": np.subtract, "VMUL": np.multiply, "VMIN": np.minimum, "VMAX": np.maximum}
for _name, _compute in _VECTOR.items():
    for _kind in ("f32", "f16", "s32", "s16"):
        _INSTRUCTIONS[f"{_name}.{_kind}"] = _binary(_compute, _F[_kind])
        _INSTRUCTIONS[f"{_name}S.{_kind}"] = _with_scalar(_compute, _F[_kind])
for _kind in ("f32", "f16"):
    _INSTRUCTIONS[f"VDIV.{_kind}"] = _binary(np.divide, _F[_kind])
for _kind in ("s16", "u16"):
    _INSTRUCTIONS[f"VAND.{_kind}"] = _binary(np.bitwise_and, _F[_kind])
    _INSTRUCTIONS[f"VOR.{_kind}"] = _binary(np.bitwise_or, _F[_kind])
    _INSTRUCTIONS[f"VNOT.{_kind}"] = _unary(np.bitwise_not, _F[_kind], _F[_kind])
for _kind in ("s32", "s16", "u32", "u16"):
    _INSTRUCTIONS[f"VSHL.{_kind}"] = _with_scalar(np.left_shift, _F[_kind])
    _INSTRUCTIONS[f"VSHR.{_kind}"] = _with_scalar(np.right_shift, _F[_kind])
_UNARY: dict[str, Callable[..., Any]] = {
    "VABS": np.abs,
    "VLN": np.log,
    "VEXP": np.exp,
    "VSQRT": np.sqrt,
    "VRELU": lambda a: np.maximum(a, a.dtype.type(0)),
    "VREC": lambda a: np.divide(a.dtype.type(1), a),
    "VRSQRT": lambda a: np.divide(a.dtype.type(1), np.sqrt(a)),
}
for _name, _unary_compute in _UNARY.items():
    for _kind in ("f32", "f16", "s32"):
        _INSTRUCTIONS[f"{_name}.{_kind}"] = _unary(_unary_compute, _F[_kind], _F[_kind])
for _kind, _dtype in {**_F, "bf16": "bf16"}.items():
    _INSTRUCTIONS[f"MOVEV.{_kind}"] = _fill(_dtype)


# ---- compare and select

_COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "GT": np.greater,
    "GE": np.greater_equal,
    "LE": np.less_equal,
}


def _compare_lanes(
    machine: Machine, target: int, repeat: int, elements: int, results: Callable[..., Any]
) -> None:
    """Bits of all lanes, packed one repeat after another."""
    lanes = machine.lanes(repeat, elements)
    start = machine.aligned(target)
    for r in range(lanes.shape[0]):
        bits = np.zeros(elements, bool)
        bits[lanes[r]] = results(r, lanes.shape[0])[lanes[r]]
        packed = np.packbits(bits, bitorder="little")
        machine.ub[start + r * packed.size : start + (r + 1) * packed.size] = packed


def _compare(compute: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    size = np.dtype(dtype).itemsize
    elements = REPEAT // size

    def execute(machine: Machine, target: int, first: int, second: int, config: int) -> None:
        def results(r: int, repeats: int) -> Any:
            a = machine.indices(first, size, repeats, elements, _bits(config, 8, 16), _bits(config, 32, 40))
            b = machine.indices(second, size, repeats, elements, _bits(config, 16, 24), _bits(config, 40, 48))
            values = machine.array(dtype)
            return compute(values[a[r]], values[b[r]])

        _compare_lanes(machine, target, _bits(config, 56, 64), elements, results)

    return execute


def _compare_scalar(compute: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    size = np.dtype(dtype).itemsize
    elements = REPEAT // size

    def execute(machine: Machine, target: int, source: int, value: Any, config: int) -> None:
        repeat, _, _, block, step = _vector_config(config)
        scalar = _scalar(value, dtype)

        def results(r: int, repeats: int) -> Any:
            return compute(
                machine.array(dtype)[machine.indices(source, size, repeats, elements, block, step)[r]], scalar
            )

        _compare_lanes(machine, target, repeat, elements, results)

    return execute


for _name, _compute in _COMPARE.items():
    for _kind in ("f32", "f16", "s32"):
        _INSTRUCTIONS[f"VCMPV.{_name}.{_kind}"] = _compare(_compute, _F[_kind])
        _INSTRUCTIONS[f"VCMPVS.{_name}.{_kind}"] = _compare_scalar(_compute, _F[_kind])


def _select(dtype: Any) -> Callable[..., Any]:
    """Mode 2: the mask register holds the address of the bits, one a lane, one repeat after another.

    Mode 1: the register holds a scalar to take where a bit is 0, and the second source is the bits.
    """
    size = np.dtype(dtype).itemsize
    elements = REPEAT // size

    def execute(machine: Machine, target: int, first: int, second: int, config: int) -> None:
        mode = _bits(config, 48, 50)
        if mode == 0:
            raise VendorBodyFailed("VSEL in mode 0")
        lanes = machine.lanes(_bits(config, 56, 64), elements)
        repeats = lanes.shape[0]
        where = machine.indices(target, size, repeats, elements, _bits(config, 0, 8), _bits(config, 24, 32))
        a = machine.indices(first, size, repeats, elements, _bits(config, 8, 16), _bits(config, 32, 40))
        values = machine.array(dtype)
        if mode == 1:
            other = np.broadcast_to(np.array([_u64(machine.select_mask)], np.uint64).view(dtype)[0], a.shape)
            start = machine.aligned(second)
        else:
            b = machine.indices(second, size, repeats, elements, _bits(config, 16, 24), _bits(config, 40, 48))
            other = values[b]
            start = machine.aligned(machine.select_mask)
        packed = machine.ub[start : start + repeats * elements // 8].copy()
        chosen = np.unpackbits(packed, bitorder="little").astype(bool).reshape(repeats, elements)
        for r in range(repeats):
            result = np.where(chosen[r], values[a[r]], other[r])
            values[where[r][lanes[r]]] = result[lanes[r]]

    return execute


_INSTRUCTIONS["VSEL.f32.1"] = _select(np.float32)
_INSTRUCTIONS["VSEL.f16.1"] = _select(np.float16)


# ---- casts

_ROUNDING = {"r": 0, "a": 1, "f": 2, "c": 3, "z": 4}


def _to_integer(values: np.ndarray, mode: int, dtype: Any) -> np.ndarray:
    wide = values.astype(np.float64)
    nearest_away = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    rounded = (np.rint(wide), nearest_away, np.floor(wide), np.ceil(wide), np.trunc(wide))[mode]
    limits = np.iinfo(dtype)
    result = np.zeros(rounded.shape, dtype)
    fits = (rounded >= float(limits.min)) & (
        rounded < -float(limits.min) if limits.min else rounded <= limits.max
    )
    result[fits] = rounded[fits].astype(dtype)
    result[rounded < float(limits.min)] = limits.min
    result[rounded > limits.max] = limits.max
    if limits.bits == 64:
        result[rounded >= 2.0**63] = limits.max
    return result


def _convert(source: str, target: str, mode: int) -> tuple[Callable[..., Any], Any, Any]:
    """A conversion and its dtypes; bf16 lives in uint16."""
    kinds: dict[str, Any] = {
        "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "s64": np.int64, "s32": np.int32,
        "s16": np.int16, "s8": np.int8, "u8": np.uint8,
    }  # fmt: skip
    to = kinds[target]

    def convert(values: np.ndarray) -> np.ndarray:
        wide = bf16_to_f32(values) if source == "bf16" else values
        if target == "bf16":
            return round_to_bf16(wide.astype(np.float32), mode)
        if target[0] in "su":
            if wide.dtype.kind == "f":
                return _to_integer(wide, mode, to)
            limits = np.iinfo(to)
            return np.asarray(np.clip(wide, limits.min, limits.max), to)
        if source == target:
            return np.asarray((np.rint, _away, np.floor, np.ceil, np.trunc)[mode](wide))
        return round_to_float(wide, to, mode)

    return convert, kinds[source], to


def _away(values: np.ndarray) -> np.ndarray:
    """Nearest, ties away from zero."""
    whole = np.trunc(values)
    step = np.abs(values - whole) >= 0.5
    return np.asarray(whole + np.copysign(step.astype(values.dtype), values), values.dtype)


def _register_conversions() -> None:
    pattern = re.compile(
        r"VCONV\.(bf16|f32|f16|s64|s32|s16|s8|u8)2(bf16|f32|f16|s64|s32|s16|s8|u8)([rafcz]?)(\.1)?\.v220"
    )
    for name in library().declared:
        match = pattern.fullmatch(name.removeprefix("llvm.hivm."))
        if match:
            convert, source, target = _convert(match[1], match[2], _ROUNDING[match[3] or "r"])
            _INSTRUCTIONS[match[0]] = _unary(convert, source, target)


# ---- moving data


@instruction("MOV.UB.TO.UB.v220")
def _copy_blocks(machine: Machine, target: int, source: int, config: int) -> None:
    bursts, length = _bits(config, 4, 16), _bits(config, 16, 32)
    source_gap, target_gap = _bits(config, 32, 48), _bits(config, 48, 64)
    to, at = machine.aligned(target), machine.aligned(source)
    for _ in range(bursts):
        if max(to, at) + length * BLOCK > UB_BYTES:
            raise VendorBodyFailed("a copy reaches beyond UB")
        machine.ub[to : to + length * BLOCK] = machine.ub[at : at + length * BLOCK].copy()
        to += (length + target_gap) * BLOCK
        at += (length + source_gap) * BLOCK


def _memory(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _load_rows(unit: int) -> Callable[..., Any]:
    """DMA from global memory: rows of bytes to rows that start at blocks, the rest of a block padded."""

    def execute(machine: Machine, target: int, source: int, config: int, gaps: int) -> None:
        bursts, length = _bits(config, 4, 16), _bits(config, 16, 37)
        left, right = _bits(config, 48, 54) * unit, _bits(config, 54, 60) * unit
        source_gap, target_gap = _bits(gaps, 0, 32), _bits(gaps, 32, 64)
        pad = np.array([machine.pad_value], np.uint64).view(np.uint8)[:unit]
        to = machine.aligned(target)
        for _ in range(bursts):
            row = left + length + right
            if to + row > UB_BYTES:
                raise VendorBodyFailed("a load reaches beyond UB")
            machine.ub[to : to + left] = np.tile(pad, left // unit)
            machine.ub[to + left : to + left + length] = _memory(source, length)
            machine.ub[to + left + length : to + row] = np.tile(pad, right // unit)
            source += length + source_gap
            to += (-(-row // BLOCK) + target_gap) * BLOCK

    return execute


def _store_rows(machine: Machine, target: int, source: int, config: int, gaps: int) -> None:
    bursts, length = _bits(config, 4, 16), _bits(config, 16, 37)
    source_gap, target_gap = _bits(gaps, 0, 32), _bits(gaps, 32, 64)
    at = machine.aligned(source)
    for _ in range(bursts):
        _memory(target, length)[:] = machine.ub[at : at + length]
        target += length + target_gap
        at += (-(-length // BLOCK) + source_gap) * BLOCK


for _unit in (1, 2, 4):
    _INSTRUCTIONS[f"MOV.OUT.TO.UB.ALIGN.b{8 * _unit}.V220"] = _load_rows(_unit)
    _INSTRUCTIONS[f"MOV.UB.TO.OUT.ALIGN.b{8 * _unit}.V220"] = _store_rows


def _broadcast_blocks(dtype: Any) -> Callable[..., Any]:
    """Eight consecutive elements a repeat, each filling one block."""
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, source: int, config: int) -> None:
        repeat, block, step, _, _ = _vector_config(config)
        values = machine.array(dtype)
        to, at = machine.aligned(target), machine.aligned(source)
        for r in range(repeat):
            for k in range(8):
                start = (to + (r * step + k * block) * BLOCK) // size
                values[start : start + BLOCK // size] = values[at // size + r * 8 + k]

    return execute


_INSTRUCTIONS["VBRCB.b16"] = _broadcast_blocks(np.uint16)
_INSTRUCTIONS["VBRCB.b32"] = _broadcast_blocks(np.uint32)


def _copy_rows(dtype: Any) -> Callable[..., Any]:
    """VCOPY: in counter mode the count is per repeat, and may exceed 256 bytes."""
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, source: int, config: int) -> None:
        if not machine.counting:
            raise VendorBodyFailed("VCOPY with a bit mask")
        repeat, block, step, source_block, source_step = _vector_config(config)
        elements = machine.mask[0]
        where = machine.indices(target, size, repeat, elements, block, step)
        taken = machine.indices(source, size, repeat, elements, source_block, source_step)
        values = machine.array(dtype)
        for r in range(repeat):
            values[where[r]] = values[taken[r]]

    return execute


_INSTRUCTIONS["VCOPY.u16"] = _copy_rows(np.uint16)
_INSTRUCTIONS["VCOPY.u32"] = _copy_rows(np.uint32)

# GatherMask's built-in patterns: which of four neighbours are taken
_PATTERNS = {1: "1010", 2: "0101", 3: "1000", 4: "0100", 5: "0010", 6: "0001", 7: "1111"}


def _gather_mask(dtype: Any) -> Callable[..., Any]:
    """Take the elements that a pattern selects and write them one after another."""
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, source: int, pattern: int, config: int) -> None:
        repeat = _bits(config, 0, 8) | _bits(config, 56, 64) << 8
        mode = _bits(config, 16, 19)
        if mode not in _PATTERNS:
            raise VendorBodyFailed(f"VREDUCEv2 in pattern mode {mode}")
        elements = machine.mask[0] if machine.counting else REPEAT // size
        chosen = np.resize(np.array([c == "1" for c in _PATTERNS[mode]]), elements)
        where = machine.indices(source, size, repeat, elements, _bits(config, 8, 16), _bits(config, 24, 40))
        values = machine.array(dtype)
        taken = (
            np.concatenate([values[where[r][chosen]] for r in range(repeat)])
            if repeat
            else np.empty(0, dtype)
        )
        start = machine.aligned(target) // size
        values[start : start + taken.size] = taken

    return execute


_INSTRUCTIONS["VREDUCEv2.b16"] = _gather_mask(np.uint16)
_INSTRUCTIONS["VREDUCEv2.b32"] = _gather_mask(np.uint32)


def _gather(dtype: Any) -> Callable[..., Any]:
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, addresses: int, config: int) -> None:
        elements = REPEAT // size
        lanes = machine.lanes(_bits(config, 56, 64), elements)
        at = machine.aligned(addresses)
        to = machine.aligned(target) // size
        count = lanes.size
        pointers = machine.ub[at : at + 4 * count].view(np.uint32)
        values = machine.array(dtype)
        for k in np.flatnonzero(lanes.ravel()):
            values[to + k] = values[machine.aligned(int(pointers[k]), size) // size]

    return execute


_INSTRUCTIONS["VGATHER.b16"] = _gather(np.uint16)
_INSTRUCTIONS["VGATHER.b32"] = _gather(np.uint32)


def _transpose_blocks(size: int) -> Callable[..., Any]:
    """Sixteen source blocks to sixteen target blocks, whose addresses are in two address registers each."""
    dtype = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]

    def execute(machine: Machine, to: int, at: int, config: int, to_high: int = 0, at_high: int = 0) -> None:
        targets = machine.addresses[to] + machine.addresses[to + 1]
        sources = machine.addresses[at] + machine.addresses[at + 1]
        repeat, target_step, source_step = _bits(config, 56, 64), _bits(config, 0, 16), _bits(config, 16, 32)
        in_block = BLOCK // size
        values = machine.array(dtype)
        for r in range(repeat):
            rows = np.empty((16, in_block), dtype)
            for k, address in enumerate(sources):
                start = machine.aligned(address + r * source_step * BLOCK) // size
                rows[k] = values[start : start + in_block]
            starts = [machine.aligned(address + r * target_step * BLOCK) // size for address in targets]
            if size == 2:
                for k, start in enumerate(starts):
                    values[start : start + 16] = rows[:, k]
            elif size == 4:
                for k in range(8):
                    values[starts[2 * k] : starts[2 * k] + 8] = rows[:8, k]
                    values[starts[2 * k + 1] : starts[2 * k + 1] + 8] = rows[8:, k]
            else:
                for k, start in enumerate(starts):
                    half = start + 16 * to_high
                    values[half : half + 16] = rows[:, k + 16 * at_high]

    return execute


for _unit in (1, 2, 4):
    _INSTRUCTIONS[f"S.VNCHWCONV.b{8 * _unit}"] = _transpose_blocks(_unit)


# ---- reductions within a repeat


def _tree(values: np.ndarray) -> Any:
    """Add neighbours, then neighbours of the sums."""
    while values.size > 1:
        if values.size % 2:
            values = np.append(values, values.dtype.type(0))
        values = values[0::2] + values[1::2]
    return values[0] if values.size else values.dtype.type(0)


def _reduce_rows(
    machine: Machine, source: int, config: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray, int]:
    """(repeats, elements) values and lanes, and the destination's step."""
    size = np.dtype(dtype).itemsize
    elements = REPEAT // size
    lanes = machine.lanes(_bits(config, 56, 64), elements)
    where = machine.indices(
        source, size, lanes.shape[0], elements, _bits(config, 16, 32), _bits(config, 32, 48)
    )
    return machine.array(dtype)[where], lanes, _bits(config, 0, 16)


def _sum_repeat(dtype: Any) -> Callable[..., Any]:
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, source: int, config: int, mode: int) -> None:
        if mode:
            raise VendorBodyFailed(f"VCADD in mode {mode}")
        values, lanes, step = _reduce_rows(machine, source, config, dtype)
        start = machine.aligned(target, size) // size
        for r in range(values.shape[0]):
            masked = np.where(lanes[r], values[r], dtype(0))
            machine.array(dtype)[start + r * step] = _tree(masked)

    return execute


def _extreme_repeat(dtype: Any, largest: bool) -> Callable[..., Any]:
    """order 2: values only; 3: indices only; 0: both; the register keeps the best over all repeats."""
    size = np.dtype(dtype).itemsize
    index_dtype = {2: np.uint16, 4: np.uint32}[size]

    def execute(machine: Machine, target: int, source: int, config: int, order: int) -> None:
        values, lanes, step = _reduce_rows(machine, source, config, dtype)
        worst = dtype(-np.inf if largest else np.inf)
        best: tuple[Any, int] | None = None
        for r in range(values.shape[0]):
            masked = np.where(lanes[r], values[r], worst)
            where = int(np.argmax(masked) if largest else np.argmin(masked))
            if best is None or (masked[where] > best[0] if largest else masked[where] < best[0]):
                best = (masked[where], r * values.shape[1] + where)
            if (target & _MASK64) == _MASK64:
                continue
            out = machine.array(dtype)
            if order == 2:
                out[machine.aligned(target, size) // size + r * step] = masked[where]
            elif order == 0:
                at = machine.aligned(target, size) // size + 2 * r * step
                out[at] = masked[where]
                machine.array(index_dtype)[at + 1] = where
            elif order == 3:
                machine.array(index_dtype)[machine.aligned(target, size) // size + r * step] = where
            else:
                raise VendorBodyFailed(f"VCMAX or VCMIN in order {order}")
        if best is not None:
            bits = int(np.array([best[0]], dtype).view(index_dtype)[0])
            machine.extreme = bits | best[1] << (8 * size)

    return execute


_MASK64 = (1 << 64) - 1


def _sum_blocks(dtype: Any) -> Callable[..., Any]:
    """VCGADD: each block of a repeat to one element, eight elements a repeat."""
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, source: int, config: int) -> None:
        values, lanes, step = _reduce_rows(machine, source, config, dtype)
        start = machine.aligned(target, 8 * size) // size
        in_block = BLOCK // size
        for r in range(values.shape[0]):
            masked = np.where(lanes[r], values[r], dtype(0))
            for b in range(8):
                if lanes[r][b * in_block : (b + 1) * in_block].any():
                    machine.array(dtype)[start + r * step * 8 + b] = _tree(
                        masked[b * in_block : (b + 1) * in_block]
                    )

    return execute


def _sum_pairs(dtype: Any) -> Callable[..., Any]:
    """VCPADD: neighbours to one element, half as many elements a repeat."""
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, source: int, config: int) -> None:
        values, lanes, step = _reduce_rows(machine, source, config, dtype)
        start = machine.aligned(target, size) // size
        half = values.shape[1] // 2
        for r in range(values.shape[0]):
            masked = np.where(lanes[r], values[r], dtype(0))
            active = lanes[r][0::2] | lanes[r][1::2]
            sums = masked[0::2] + masked[1::2]
            out = machine.array(dtype)
            out[start + r * step * half + np.flatnonzero(active)] = sums[active]

    return execute


for _kind in ("f32", "f16"):
    _INSTRUCTIONS[f"VCADD.{_kind}.order"] = _sum_repeat(_F[_kind])
    _INSTRUCTIONS[f"VCMAX.{_kind}.order.v220"] = _extreme_repeat(_F[_kind], True)
    _INSTRUCTIONS[f"VCMIN.{_kind}.order.v220"] = _extreme_repeat(_F[_kind], False)
    _INSTRUCTIONS[f"VCGADD.{_kind}"] = _sum_blocks(_F[_kind])
    _INSTRUCTIONS[f"VCPADD.{_kind}"] = _sum_pairs(_F[_kind])


# ---- sorting: records of eight bytes, a score and a 32-bit index


def _records(machine: Machine, offset: int, count: int) -> np.ndarray:
    return machine.ub[offset : offset + 8 * count].view(np.uint64)


def _scores(records: np.ndarray, dtype: Any) -> np.ndarray:
    return np.asarray(records.view(dtype))[:: 8 // np.dtype(dtype).itemsize]


def _sort32(dtype: Any) -> Callable[..., Any]:
    """VBS32: 32 scores and indices a repeat, sorted by falling score, equal scores in their order."""
    size = np.dtype(dtype).itemsize

    def execute(machine: Machine, target: int, scores: int, indices: int, config: int) -> None:
        to, at, index = machine.aligned(target), machine.aligned(scores), machine.aligned(indices)
        for r in range(_bits(config, 56, 64)):
            values = machine.ub[at + r * 32 * size :][: 32 * size].view(dtype).copy()
            numbers = machine.ub[index + r * 128 :][:128].view(np.uint32).copy()
            order = np.argsort(-values.astype(np.float64), kind="stable")
            records = np.zeros(32, np.uint64)
            _scores(records, dtype)[:] = values[order]
            records.view(np.uint32)[1::2] = numbers[order]
            _records(machine, to + r * 256, 32)[:] = records

    return execute


def _merge_sorted(dtype: Any) -> Callable[..., Any]:
    """VMRGSORT: merge up to four sorted lists of records, the earlier list first among equals."""

    def execute(machine: Machine, target: int, packed: int, lengths: int, config: int) -> None:
        repeat, valid = _bits(config, 0, 8), _bits(config, 8, 12)
        to = machine.aligned(target, 8)
        for r in range(repeat):
            lists = []
            total = sum(_bits(lengths, 16 * k, 16 * k + 16) for k in range(4) if valid >> k & 1)
            for k in range(4):
                if valid >> k & 1:
                    start = (_bits(packed, 16 * k, 16 * k + 16) << 3) + r * total * 8
                    lists.append(_records(machine, start, _bits(lengths, 16 * k, 16 * k + 16)).copy())
            merged = np.concatenate(lists)
            order = np.argsort(-_scores(merged, dtype).astype(np.float64), kind="stable")
            _records(machine, to + r * total * 8, merged.size)[:] = merged[order]

    return execute


for _kind in ("f32", "f16"):
    _INSTRUCTIONS[f"VBS32.{_kind}"] = _sort32(_F[_kind])
    _INSTRUCTIONS[f"VMRGSORT.{_kind}.V220"] = _merge_sorted(_F[_kind])


@lru_cache(maxsize=1)
def machine() -> Machine:
    """The one machine of this process. Errors: ToolchainMissing."""
    _register_conversions()
    return Machine()
