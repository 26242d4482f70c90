"""Translate the vendor's final IR into Python source over NumPy views.

Every memref operation is folded at translation time into one `View` (space, byte address, offset, sizes,
strides); what remains at run time is integer arithmetic, control flow, one view per operand of a library
call, and the call. A static view of UB is built once per run. Two renderings come from one translation: the
fast one, and the checked one that also tells the runtime about flags, barriers, temporaries and turns of the
persistent loop.

An operation that is not known here, or used in a form that is not, is an `UntranslatableIR` that names it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from monotile.compat.errors import MonotileError

from . import scalars
from .library import Operand, Routine, itemsize, resolve
from .parse import MemRefType, Operation, integers, memref_type, parse, split


class UntranslatableIR(MonotileError, RuntimeError):
    """The final IR holds something the emulator does not execute."""


# A scalar is known at translation time (an int), or named by a Python expression that needs no brackets.
Scalar = int | str
_DYNAMIC = -9223372036854775808  # "take the next operand" in static_offsets, static_sizes, static_strides


@dataclass(frozen=True)
class View:
    """A memref. `base` is a byte address in UB, or the number of the function's argument in global memory."""

    space: str
    element: str
    base: Scalar
    offset: Scalar
    sizes: tuple[Scalar, ...]
    strides: tuple[Scalar, ...]


@dataclass(frozen=True)
class Parameter:
    """One argument of the entry function: a "tensor" (flat, of `dtype`) or a "scalar"."""

    kind: str
    dtype: str
    read: bool = False
    written: bool = False


@dataclass(frozen=True)
class Site:
    """One library call in the IR: its routine, and where it is."""

    routine: str
    operands: tuple[Operand, ...]
    line: int


@dataclass
class Translation:
    """Python source in both renderings, with for each of its lines the IR it came from."""

    name: str
    parameters: tuple[Parameter, ...]
    sites: tuple[Site, ...]
    fast: str
    checked: str
    fast_origin: dict[int, str]
    checked_origin: dict[int, str]
    ub_used: int
    granules: dict[int, int]  # argument -> bytes of the smallest element it is viewed as


@dataclass
class _Line:
    depth: int
    fast: str | None
    checked: str | None
    origin: str


_INLINE = {
    "arith.addi": "+",
    "arith.subi": "-",
    "arith.muli": "*",
    "arith.andi": "&",
    "arith.ori": "|",
    "arith.xori": "^",
}
_SIGNED = ("==", "!=", "<", "<=", ">", ">=")
_PIPES = ("S", "V", "MTE1", "MTE2", "MTE3", "M", "FIX", "ALL")
_NOTHING = (
    "hivm.hir.set_mask_norm",  # resets the vector mask; library bodies set their own
    "hivm.hir.set_ffts_base_addr",  # cross-core flags, unused by vector-only kernels
    "memref.dealloc",
    "annotation.mark",
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def translate(generic_ir: str) -> Translation:
    """Translate the module's one function with a body.

    Errors: IRSyntaxError; UntranslatableIR or UnknownRoutine naming the operation or library call and its
    line.
    """
    return _Translator(parse(generic_ir), generic_ir).run()


def _add(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0:
        return b
    if b == 0:
        return a
    return f"({a}+{b})"


def _mul(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 0 or b == 0:
        return 0
    if a == 1:
        return b
    if b == 1:
        return a
    return f"({a}*{b})"


def _product(values: Sequence[Scalar]) -> Scalar:
    result: Scalar = 1
    for value in values:
        result = _mul(result, value)
    return result


def _row_major(sizes: Sequence[Scalar]) -> tuple[Scalar, ...]:
    strides: list[Scalar] = []
    stride: Scalar = 1
    for size in reversed(sizes):
        strides.insert(0, stride)
        stride = _mul(size, stride)
    return tuple(strides)


class _Translator:
    def __init__(self, module: Operation, text: str) -> None:
        self.text = text.splitlines()
        functions = [
            f for f in module.regions[0].operations if f.name == "func.func" and f.regions[0].operations
        ]
        if len(functions) != 1:
            raise UntranslatableIR(f"expected one function with a body, found {len(functions)}")
        self.function = functions[0]
        self.name = self.function.properties["sym_name"].strip('"')
        self.lines: list[_Line] = []
        self.prologue: list[str] = []
        self.static_views: dict[str, str] = {}
        self.values: dict[str, Scalar | View] = {}
        self.sites: list[Site] = []
        self.targets: list[list[str]] = []  # names that scf.yield assigns, innermost last
        self.block_dependent = {"block", "blocks"}
        self.depth = 0
        self.counter = 0
        self.ub_used = 0
        self.granules: dict[int, int] = {}
        self.read: set[int] = set()
        self.written: set[int] = set()
        self.persistent = False
        self.current: Operation = self.function

    # ---- the whole function
    def run(self) -> Translation:
        parameters: list[Parameter] = []
        names: list[str] = []
        for number, (name, type_) in enumerate(self.function.regions[0].arguments):
            if type_.startswith("memref"):
                memref = memref_type(type_)
                sizes = tuple(_DYNAMIC if s is None else s for s in memref.shape)
                if memref.strides is not None and memref.strides not in ((1,), (None,)) and len(sizes) > 1:
                    raise UntranslatableIR(f"argument {number} of {self.name} is strided: {type_}")
                self.values[name] = View("gm", memref.element, number, 0, sizes, _row_major(sizes))
                self.granules[number] = itemsize(memref.element)
                parameters.append(Parameter("tensor", memref.element))
                names.append(f"_{number}")
            else:
                self.values[name] = f"p{number}"
                parameters.append(Parameter("scalar", type_))
                names.append(f"p{number}")
        self.body(self.function.regions[0].operations)
        parameters = [
            replace(p, read=n in self.read, written=n in self.written) for n, p in enumerate(parameters)
        ]
        arguments = "".join(f"{n}, " for n in names)
        fast, fast_origin = self.render(arguments, checked=False)
        checked, checked_origin = self.render(arguments, checked=True)
        return Translation(
            self.name, tuple(parameters), tuple(self.sites), fast, checked, fast_origin, checked_origin,
            self.ub_used, self.granules,
        )  # fmt: skip

    def render(self, arguments: str, checked: bool) -> tuple[str, dict[int, str]]:
        counters = [f"n{k}" for k in range(len(self.sites))] + ["scalar_loads", "scalar_stores"]
        out = [
            "def make(rt):",
            "  ub, gm = rt.ub, rt.gm",
            "  load_ub, store_ub, load_gm, store_gm = rt.load_ub, rt.store_ub, rt.load_gm, rt.store_gm",
            "  set_flag, wait_flag, barrier = rt.set_flag, rt.wait_flag, rt.barrier",
            "  enter, turn = rt.enter, rt.turn",
        ]
        out += [f"  call{k} = rt.calls[{k}]" for k in range(len(self.sites))]
        out += ["  " + p for p in self.prologue]
        out += ["  def kernel(arguments, block, blocks):", f"    {arguments or '_ '}= arguments"]
        out += ["    " + " = ".join(counters) + " = 0"]
        origin: dict[int, str] = {}
        for line in self.lines:
            text = line.checked if checked else line.fast
            if text is None:
                continue
            out.append("  " * (line.depth + 2) + text)
            origin[len(out)] = line.origin
        out += [f"    return ({', '.join(counters)})", "  return kernel", ""]
        return "\n".join(out), origin

    def body(self, operations: Sequence[Operation]) -> None:
        self.emit("pass")
        for operation in operations:
            self.current = operation
            self.operation(operation)

    # ---- emitting
    def origin(self) -> str:
        line = self.current.line
        source = self.text[line - 1].strip() if line <= len(self.text) else ""
        return f"line {line}: {source[:160]}"

    def emit(self, fast: str | None, checked: str | None = "") -> None:
        """Add a line; `checked` differs where it is given, None leaves the line out of that rendering."""
        self.lines.append(_Line(self.depth, fast, fast if checked == "" else checked, self.origin()))

    def fresh(self, prefix: str = "v") -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def assign(self, result: str, expression: Scalar) -> None:
        """Bind an IR result to a constant, to a name, or to a new Python variable with that value."""
        if isinstance(expression, str) and not expression.isidentifier():
            expression = self.variable(expression)
        self.values[result] = expression

    def variable(self, expression: Scalar) -> str:
        name = self.fresh()
        self.emit(f"{name} = {expression}")
        if isinstance(expression, str) and self.block_dependent & set(_IDENTIFIER.findall(expression)):
            self.block_dependent.add(name)
        return name

    def fail(self, why: str) -> UntranslatableIR:
        return UntranslatableIR(f"{self.name}: {why} ({self.origin()})")

    def scalar(self, name: str) -> Scalar:
        value = self.values[name]
        if isinstance(value, View):
            raise self.fail(f"{name} is a memref where a scalar is needed")
        return value

    def view(self, name: str) -> View:
        value = self.values[name]
        if not isinstance(value, View):
            raise self.fail(f"{name} is a scalar where a memref is needed")
        return value

    # ---- one operation
    def operation(self, op: Operation) -> None:
        name = op.name
        if name in _NOTHING or name == "func.return":
            return None
        dialect, _, short = name.partition(".")
        if name == "func.call":
            return self.call(op)
        if dialect == "arith":
            return self.arith(op, short)
        if dialect == "affine":
            return self.affine(op, short)
        if dialect == "memref":
            return self.memref(op, short)
        if dialect == "scf":
            return self.control(op, short)
        if name.startswith("hivm.hir."):
            return self.hivm(op, name[len("hivm.hir.") :])
        raise self.fail(f"operation {name} is not known")

    # ---- arith
    def arith(self, op: Operation, name: str) -> None:
        result = op.results[0]
        if name == "constant":
            value, _, type_ = op.properties["value"].partition(" : ")
            constant = scalars.literal(value, type_ or op.result_types[0])
            self.values[result] = constant if isinstance(constant, int) else _float_literal(constant)
            return
        if name == "select":
            self.select(op)
            return
        type_ = op.operand_types[0]
        to = op.result_types[0]
        args = [self.scalar(o) for o in op.operands]
        expression = self.arith_expression(op, name, type_, to, args)
        self.assign(result, _fold(expression) if all(isinstance(a, int) for a in args) else expression)

    def arith_expression(self, op: Operation, name: str, type_: str, to: str, args: list[Scalar]) -> Scalar:
        a = args[0]
        b = args[1] if len(args) > 1 else 0
        bits = scalars.WIDTH.get(type_, 0)
        if f"arith.{name}" in _INLINE:
            expression = f"{a}{_INLINE['arith.' + name]}{b}"
            if name in ("addi", "subi", "muli") and type_ != "index":
                if bits == 1:
                    return f"{a}&{b}" if name == "muli" else f"{a}^{b}"
                return self.wrapped(expression, bits)
            return expression
        match name:
            case "floordivsi":
                return f"{a}//{b}"
            case "ceildivsi":
                return f"-(-{a}//{b})"
            case "divsi":
                return f"s_divide({a}, {b})"
            case "remsi":
                return f"s_remainder({a}, {b})"
            case "divui" | "remui" | "ceildivui":
                x, y = f"s_unsigned({a}, {bits})", f"s_unsigned({b}, {bits})"
                quotient = {"divui": f"{x}//{y}", "remui": f"{x}%{y}", "ceildivui": f"-(-{x}//{y})"}[name]
                return self.wrapped(quotient, bits)
            case "minsi" | "maxsi":
                return f"{name[:3]}({a}, {b})"
            case "minui" | "maxui":
                return self.wrapped(f"{name[:3]}(s_unsigned({a}, {bits}), s_unsigned({b}, {bits}))", bits)
            case "shli":
                return self.wrapped(f"({a}<<{b})", bits)
            case "shrsi":
                return f"{a}>>{b}"
            case "shrui":
                return self.wrapped(f"s_unsigned({a}, {bits})>>{b}", bits)
            case "cmpi":
                predicate = int(op.properties["predicate"].split()[0])
                if predicate < 6:
                    return f"{a}{_SIGNED[predicate]}{b}"
                x, y = f"s_unsigned({a}, {bits})", f"s_unsigned({b}, {bits})"
                return f"{x}{_SIGNED[predicate - 4]}{y}"
            case "index_cast" | "index_castui" | "extsi" | "extui" | "trunci":
                return self.integer_cast(name, type_, to, a)
        return self.float_expression(op, name, type_, to, a, b)

    def wrapped(self, expression: str, bits: int) -> str:
        return f"s_wrap32({expression})" if bits == 32 else f"s_wrap({expression}, {bits})"

    def integer_cast(self, name: str, type_: str, to: str, a: Scalar) -> Scalar:
        source, target = scalars.WIDTH[type_], scalars.WIDTH[to]
        if name in ("extui", "index_castui") and source > 1 and source < target:
            return f"s_unsigned({a}, {source})"
        if type_ == "i1" and name in ("extsi", "index_cast"):
            return f"-int({a})"
        if type_ == "i1":
            return f"int({a})"
        if target == 1:
            return f"{a}&1"
        return a if target >= source else self.wrapped(str(a), target)

    def float_expression(self, op: Operation, name: str, type_: str, to: str, a: Scalar, b: Scalar) -> str:
        if name == "bitcast":
            if type_ in ("f32", "f16"):
                return f"s_bits_of({a}, '{type_}')"
            if to in ("f32", "f16"):
                return f"s_from_bits({a}, '{to}')"
            return f"s_unsigned({a}, 16)" if to == "bf16" else f"s_wrap({a}, 16)"
        if name in ("sitofp", "uitofp"):
            value = (
                str(a) if name == "sitofp" and type_ != "i1" else f"s_unsigned({a}, {scalars.WIDTH[type_]})"
            )
            if type_ == "i64" and to != "f32":
                raise self.fail("i64 to a 16-bit float would round twice")
            return self.rounded(f"float({value})", to)
        if type_ == "bf16":
            a, b = f"s_from_bf16({a})", f"s_from_bf16({b})"
        if name == "fptosi":
            return f"s_float_to_int({a}, {scalars.WIDTH[to]})"
        if name in ("extf", "truncf"):
            return self.rounded(str(a), to)
        if name == "cmpf":
            return f"s_compare_floats({int(op.properties['predicate'].split()[0])}, {a}, {b})"
        if name == "negf":
            return self.rounded(f"-{a}", to)
        forms = {
            "addf": "{a}+{b}",
            "subf": "{a}-{b}",
            "mulf": "{a}*{b}",
            "divf": "s_float_divide({a}, {b})",
            "maximumf": "s_maximum({a}, {b})",
            "minimumf": "s_minimum({a}, {b})",
        }
        if name not in forms:
            raise self.fail(f"operation arith.{name} is not known")
        return self.rounded(forms[name].format(a=a, b=b), to)

    @staticmethod
    def rounded(expression: str, to: str) -> str:
        return f"s_to_{to}({expression})"

    def select(self, op: Operation) -> None:
        condition = self.scalar(op.operands[0])
        yes, no = self.values[op.operands[1]], self.values[op.operands[2]]
        if isinstance(yes, View) and isinstance(no, View):
            if (yes.space, yes.element, yes.sizes, yes.strides) != (
                no.space,
                no.element,
                no.sizes,
                no.strides,
            ):
                raise self.fail("select between memrefs of different layout")
            if yes.space == "gm" and yes.base != no.base:
                raise self.fail("select between two arguments in global memory")
            base, offset = yes.base, yes.offset
            if yes.base != no.base:
                base = self.variable(f"{yes.base} if {condition} else {no.base}")
            if yes.offset != no.offset:
                offset = self.variable(f"{yes.offset} if {condition} else {no.offset}")
            self.values[op.results[0]] = replace(yes, base=base, offset=offset)
        elif isinstance(yes, View) or isinstance(no, View):
            raise self.fail("select between a memref and a scalar")
        elif isinstance(condition, int):
            self.values[op.results[0]] = yes if condition else no
        else:
            self.assign(op.results[0], f"{yes} if {condition} else {no}")

    # ---- affine
    def affine(self, op: Operation, name: str) -> None:
        results = self.affine_results(op.properties["map"], [self.scalar(o) for o in op.operands])
        if name == "apply":
            expression: Scalar = results[0]
        elif name in ("min", "max"):
            expression = f"{name}({', '.join(str(r) for r in results)})" if len(results) > 1 else results[0]
        else:
            raise self.fail(f"operation affine.{name} is not known")
        static = not _IDENTIFIER.search(str(expression).replace("min", "").replace("max", ""))
        self.assign(op.results[0], _fold(expression) if static else expression)

    def affine_results(self, map_: str, arguments: list[Scalar]) -> list[str]:
        match = re.match(r"affine_map<\((.*?)\)(?:\[(.*?)\])? -> \((.*)\)>$", map_)
        if not match:
            raise self.fail(f"affine map {map_!r} is not understood")
        names = [n.strip() for n in (match[1] + "," + (match[2] or "")).split(",") if n.strip()]
        bound = dict(zip(names, arguments, strict=True))
        return [_affine_expression(e, bound) for e in split(match[3])]

    # ---- memref
    def memref(self, op: Operation, name: str) -> None:
        match name:
            case "load":
                self.load(op)
            case "store":
                self.store(op)
            case "cast" | "memory_space_cast":
                self.values[op.results[0]] = self.view(op.operands[0])
            case "dim":
                index = self.scalar(op.operands[1])
                if not isinstance(index, int):
                    raise self.fail("memref.dim of an axis that is not constant")
                self.values[op.results[0]] = self.known(self.view(op.operands[0]).sizes[index])
            case "subview":
                self.subview(op)
            case "reinterpret_cast":
                view = self.view(op.operands[0])
                offsets, sizes, strides = self.mixed(op)
                self.values[op.results[0]] = replace(view, offset=offsets[0], sizes=sizes, strides=strides)
            case "collapse_shape":
                self.collapse(op)
            case "expand_shape":
                self.expand(op)
            case "extract_strided_metadata":
                view = self.view(op.operands[0])
                rank = len(view.sizes)
                # The base that comes out starts at the allocation: its offset is 0.
                self.values[op.results[0]] = replace(view, offset=0, sizes=(), strides=())
                rest = (view.offset, *view.sizes, *view.strides)
                for result, value in zip(op.results[1:], rest, strict=True):
                    self.values[result] = value
                assert len(op.results) == 2 + 2 * rank
            case _:
                raise self.fail(f"operation memref.{name} is not known")

    def known(self, size: Scalar) -> Scalar:
        if size == _DYNAMIC:
            raise self.fail("the size of an argument is not passed to the kernel")
        return size

    def mixed(self, op: Operation) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...], tuple[Scalar, ...]]:
        """Offsets, sizes and strides of a subview or reinterpret_cast."""
        dynamic = iter([self.scalar(o) for o in op.operands[1:]])
        parts = []
        for key in ("static_offsets", "static_sizes", "static_strides"):
            parts.append(tuple(next(dynamic) if v == _DYNAMIC else v for v in integers(op.properties[key])))
        return parts[0], parts[1], parts[2]

    def subview(self, op: Operation) -> None:
        view = self.view(op.operands[0])
        offsets, sizes, steps = self.mixed(op)
        offset = view.offset
        for start, stride in zip(offsets, view.strides, strict=True):
            offset = _add(offset, _mul(start, stride))
        strides = [_mul(step, stride) for step, stride in zip(steps, view.strides, strict=True)]
        kept = list(sizes)
        shape = memref_type(op.result_types[0]).shape
        while len(kept) > len(shape):  # a rank-reducing subview drops axes of size 1
            for axis, size in enumerate(kept):
                if size == 1 and (axis >= len(shape) or shape[axis] != 1):
                    del kept[axis], strides[axis]
                    break
            else:
                raise self.fail("subview drops an axis that is not 1")
        if isinstance(offset, str) and not offset.isidentifier():
            offset = self.variable(offset)
        self.values[op.results[0]] = replace(view, offset=offset, sizes=tuple(kept), strides=tuple(strides))

    def groups(self, op: Operation) -> list[list[int]]:
        text = op.properties["reassociation"]
        groups = re.findall(r"\[([\d, ]*)\]", text.strip()[1:-1])
        return [[int(i) for i in g.split(",") if i.strip()] for g in groups]

    def collapse(self, op: Operation) -> None:
        view = self.view(op.operands[0])
        sizes: list[Scalar] = []
        strides: list[Scalar] = []
        for group in self.groups(op):
            sizes.append(_product([view.sizes[axis] for axis in group]))
            # Axes of size 1 have no say in the stride, unless all of the group's are.
            real = [axis for axis in group if view.sizes[axis] != 1] or group[-1:]
            strides.append(view.strides[real[-1]])
            for outer, inner in itertools.pairwise(real):
                step = _mul(view.sizes[inner], view.strides[inner])
                if (
                    isinstance(step, int)
                    and isinstance(view.strides[outer], int)
                    and step != view.strides[outer]
                ):
                    raise self.fail("collapse_shape of axes that do not follow one another")
        self.values[op.results[0]] = replace(view, sizes=tuple(sizes), strides=tuple(strides))

    def expand(self, op: Operation) -> None:
        view = self.view(op.operands[0])
        dynamic = iter([self.scalar(o) for o in op.operands[1:]])
        sizes = [
            next(dynamic) if v == _DYNAMIC else v for v in integers(op.properties["static_output_shape"])
        ]
        strides: list[Scalar] = [1] * len(sizes)
        for number, group in enumerate(self.groups(op)):
            stride = view.strides[number]
            for axis in reversed(group):
                strides[axis] = stride
                stride = _mul(stride, sizes[axis])
        self.values[op.results[0]] = replace(view, sizes=tuple(sizes), strides=tuple(strides))

    def element_offset(self, view: View, indices: Sequence[str]) -> Scalar:
        offset = view.offset
        for index, stride in zip(indices, view.strides, strict=True):
            offset = _add(offset, _mul(self.scalar(index), stride))
        return offset

    def load(self, op: Operation) -> None:
        view = self.view(op.operands[0])
        offset = self.element_offset(view, op.operands[1:])
        if view.space == "ub":
            expression = f"load_ub('{view.element}', {view.base}, {offset})"
        else:
            self.touch(view, "r")
            expression = f"load_gm({view.base}, '{view.element}', {offset})"
        self.emit("scalar_loads += 1")
        self.assign(op.results[0], expression)

    def store(self, op: Operation) -> None:
        view = self.view(op.operands[1])
        value = self.scalar(op.operands[0])
        offset = self.element_offset(view, op.operands[2:])
        self.emit("scalar_stores += 1")
        if view.space == "ub":
            self.emit(f"store_ub('{view.element}', {view.base}, {offset}, {value})")
        else:
            self.touch(view, "w")
            self.emit(f"store_gm({view.base}, '{view.element}', {offset}, {value})")

    def touch(self, view: View, how: str) -> None:
        argument = view.base
        assert isinstance(argument, int)
        (self.read if how == "r" else self.written).add(argument)
        self.granules[argument] = min(self.granules[argument], itemsize(view.element))

    # ---- hivm
    def hivm(self, op: Operation, name: str) -> None:
        match name:
            case "pointer_cast":
                self.pointer_cast(op)
            case "bitcast":
                view = self.view(op.operands[0])
                type_ = memref_type(op.result_types[0])
                if itemsize(type_.element) != itemsize(view.element) or "i1" in (type_.element, view.element):
                    raise self.fail("bitcast between elements of different size")
                self.values[op.results[0]] = replace(view, element=type_.element)
            case "get_block_idx":
                self.values[op.results[0]] = "block"
            case "get_block_num":
                self.values[op.results[0]] = "blocks"
            case "set_flag" | "wait_flag":
                source, target = (self.pipe(op.properties[k]) for k in ("set_pipe", "wait_pipe"))
                if op.operands:
                    event: Scalar = self.scalar(op.operands[0])
                else:
                    event = self.event(op)
                self.emit(None, f"{name}('{source}', '{target}', {event})")
            case "pipe_barrier":
                self.emit(None, f"barrier('{self.pipe(op.properties['pipe'])}')")
            case _:
                raise self.fail(f"operation hivm.hir.{name} is not known (not lowered to a library call?)")

    def pipe(self, attribute: str) -> str:
        match = re.search(r"PIPE_(\w+)", attribute)
        if not match or match[1] not in _PIPES:
            raise self.fail(f"pipe {attribute} is not known")
        return match[1]

    def event(self, op: Operation) -> int:
        match = re.search(r"EVENT_ID(\d+)", op.properties.get("static_event_id", ""))
        if not match:
            raise self.fail("a flag without event")
        return int(match[1])

    def pointer_cast(self, op: Operation) -> None:
        type_ = memref_type(op.result_types[0])
        if type_.space != "ub":
            raise self.fail(f"pointer_cast into {type_.space}")
        address = self.scalar(op.operands[0])
        dynamic = iter([self.scalar(o) for o in op.operands[1:]])
        sizes = tuple(next(dynamic) if s is None else s for s in type_.shape)
        strides = _row_major(sizes) if type_.strides is None else _static(type_, self)
        self.values[op.results[0]] = View("ub", type_.element, address, 0, sizes, strides)
        if isinstance(address, int) and all(isinstance(s, int) for s in sizes):
            elements = _product(sizes)
            assert isinstance(elements, int)
            size = (elements + 7) // 8 if type_.element == "i1" else elements * itemsize(type_.element)
            self.ub_used = max(self.ub_used, address + size)

    # ---- library calls
    def call(self, op: Operation) -> None:
        callee = op.properties["callee"].lstrip("@")
        operands: list[Operand] = []
        values: list[str] = []
        views: list[View | None] = []
        for name, type_ in zip(op.operands, op.operand_types, strict=True):
            value = self.values[name]
            if isinstance(value, View):
                operands.append(Operand(value.element, len(value.sizes), value.space))
                values.append(self.view_expression(value))
                views.append(value)
            else:
                operands.append(Operand(type_))
                values.append(str(value))
                views.append(None)
        routine = resolve(callee, tuple(operands))
        number = len(self.sites)
        self.sites.append(Site(callee, tuple(operands), op.line))
        self.mark_arguments(routine, views)
        self.emit(f"n{number} += 1")
        fast = ["None" if k in routine.temporaries else v for k, v in enumerate(values)]
        self.emit(f"call{number}({', '.join(fast)})", f"call{number}({', '.join(values)})")

    def mark_arguments(self, routine: Routine, views: Sequence[View | None]) -> None:
        for how, positions in (("r", routine.reads), ("w", routine.writes)):
            for position in positions:
                view = views[position]
                if view is not None and view.space == "gm":
                    self.touch(view, how)

    def view_expression(self, view: View) -> str:
        """The Python expression for an operand: a prebuilt name where all is static, else a constructor
        call.
        """
        if view.element == "i1":
            sizes, strides, offset = self.bit_view(view)
        else:
            size = itemsize(view.element)
            sizes, strides = view.sizes, tuple(_mul(s, size) for s in view.strides)
            offset = _mul(view.offset, size)
        shape = "(" + "".join(f"{s}, " for s in sizes) + "), (" + "".join(f"{s}, " for s in strides) + ")"
        if view.space == "gm":
            return f"gm({view.base}, '{view.element}', {offset}, {shape})"
        if view.space != "ub":
            raise self.fail(f"a view of {view.space}")
        expression = f"ub('{view.element}', {_add(view.base, offset)}, {shape})"
        if all(isinstance(x, int) for x in (view.base, offset, *sizes, *strides)):
            if expression not in self.static_views:
                name = self.fresh("u")
                self.static_views[expression] = name
                self.prologue.append(f"{name} = {expression}")
            return self.static_views[expression]
        return expression

    def bit_view(self, view: View) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...], Scalar]:
        """Bytes that hold an i1 view: eight to a byte along the last axis, least significant bit first."""
        if not view.sizes or (view.strides[-1] != 1 and view.sizes[-1] != 1):
            raise self.fail("an i1 memref whose last axis is not contiguous")
        last = view.sizes[-1]
        packed: Scalar = (last + 7) // 8 if isinstance(last, int) else f"(({last}+7)>>3)"
        strides = tuple(s // 8 if isinstance(s, int) else f"s_whole_bytes({s})" for s in view.strides[:-1])
        for size, stride in zip(view.sizes[:-1], view.strides[:-1], strict=True):
            if isinstance(stride, int) and stride % 8 and size != 1:
                raise self.fail("an i1 memref whose rows do not start at bytes")
        offset: Scalar = view.offset // 8 if isinstance(view.offset, int) else f"s_whole_bytes({view.offset})"
        if isinstance(view.offset, int) and view.offset % 8:
            raise self.fail("an i1 memref that does not start at a byte")
        return (*view.sizes[:-1], packed), (*strides, 1), offset

    # ---- structured control flow
    def control(self, op: Operation, name: str) -> None:
        match name:
            case "for":
                self.for_loop(op)
            case "if":
                self.if_else(op)
            case "while":
                self.while_loop(op)
            case "yield":
                self.transfer(self.targets[-1], op.operands)
            case _:
                raise self.fail(f"operation scf.{name} is not known")

    def transfer(self, targets: list[str], sources: Sequence[str]) -> None:
        """Assign at once: sources may be the targets of the same line."""
        parts = [part for source in sources for part in self.flatten(self.values[source])]
        if len(parts) != len(targets):
            raise self.fail("a memref of another shape is carried")
        if targets:
            self.emit(f"{', '.join(targets)}, = {', '.join(str(p) for p in parts)},")

    def flatten(self, value: Scalar | View) -> list[Scalar]:
        if isinstance(value, View):
            own = [] if value.space == "gm" else [value.base]
            return [*own, value.offset, *value.sizes, *value.strides]
        return [value]

    def carry(self, value: Scalar | View) -> tuple[list[str], Scalar | View]:
        """New variables for a value that a loop or branch carries: names, and the value made of them."""
        names = [self.fresh() for _ in self.flatten(value)]
        self.block_dependent.update(names)
        if not isinstance(value, View):
            return names, names[0]
        rest = list(names)
        base = value.base if value.space == "gm" else rest.pop(0)
        rank = len(value.sizes)
        sizes, strides = tuple(rest[1 : 1 + rank]), tuple(rest[1 + rank :])
        return names, replace(value, base=base, offset=rest[0], sizes=sizes, strides=strides)

    def for_loop(self, op: Operation) -> None:
        low, high, step = (self.scalar(o) for o in op.operands[:3])
        region = op.regions[0]
        carried: list[str] = []
        results: list[Scalar | View] = []
        for (name, _), start in zip(region.arguments[1:], op.operands[3:], strict=True):
            names, value = self.carry(self.values[start])
            self.emit(f"{', '.join(names)}, = {', '.join(str(p) for p in self.flatten(self.values[start]))},")
            carried += names
            results.append(value)
            self.values[name] = value
        index = self.fresh("i")
        self.values[region.arguments[0][0]] = index
        depends = self.block_dependent & set(_IDENTIFIER.findall(f"{low} {step}"))
        persistent = bool(depends) and not self.persistent
        if depends:
            self.block_dependent.add(index)
        if persistent:
            self.persistent = True
            self.emit(None, f"enter({low}, {high}, {step})")
        self.emit(f"for {index} in range({low}, {high}, {step}):")
        self.depth += 1
        if persistent:
            self.emit(None, "turn()")
        self.targets.append(carried)
        self.body(region.operations)
        self.targets.pop()
        self.depth -= 1
        if persistent:
            self.persistent = False
        for result, value in zip(op.results, results, strict=True):
            self.values[result] = value

    def if_else(self, op: Operation) -> None:
        condition = self.scalar(op.operands[0])
        targets: list[str] = []
        values: list[Scalar | View] = []
        for keyword, region in zip((f"if {condition}:", "else:"), op.regions, strict=False):
            if not region.operations:
                continue
            self.emit(keyword)
            self.depth += 1
            self.targets.append([])
            self.body(region.operations[:-1])
            end = region.operations[-1]
            self.current = end
            if op.results and not targets:
                for source in end.operands:
                    names, value = self.carry(self.values[source])
                    targets += names
                    values.append(value)
            self.transfer(targets, end.operands)
            self.targets.pop()
            self.depth -= 1
        for result, value in zip(op.results, values, strict=True):
            self.values[result] = value

    def while_loop(self, op: Operation) -> None:
        before, after = op.regions
        carried: list[str] = []
        for (name, _), start in zip(before.arguments, op.operands, strict=True):
            names, value = self.carry(self.values[start])
            self.emit(f"{', '.join(names)}, = {', '.join(str(p) for p in self.flatten(self.values[start]))},")
            carried += names
            self.values[name] = value
        self.emit("while True:")
        self.depth += 1
        condition = before.operations[-1]
        self.targets.append([])
        self.body(before.operations[:-1])
        self.targets.pop()
        self.current = condition
        # A name of the first region may be one of the second's too: use all of the first before binding the
        # second.
        passed = [self.carry(self.values[source]) for source in condition.operands[1:]]
        self.transfer([name for names, _ in passed for name in names], condition.operands[1:])
        self.emit(f"if not {self.scalar(condition.operands[0])}: break")
        for (_, value), (name, _), result in zip(passed, after.arguments, op.results, strict=True):
            self.values[name] = self.values[result] = value
        self.targets.append(carried)
        self.body(after.operations)
        self.targets.pop()
        self.depth -= 1


def _static(type_: MemRefType, translator: _Translator) -> tuple[Scalar, ...]:
    assert type_.strides is not None
    if type_.offset != 0 or None in type_.strides:
        raise translator.fail("pointer_cast to a memref of dynamic layout")
    return tuple(s for s in type_.strides if s is not None)


def _float_literal(value: float) -> str:
    return f"({value!r})" if value - value == 0 else f"float('{value}')"


def _fold(expression: Scalar) -> Scalar:
    """Evaluate an expression of constants; a result that is not an int stays text."""
    if isinstance(expression, int):
        return expression
    value = eval(
        expression, {"__builtins__": {"min": min, "max": max, "int": int, "float": float}, **HELPERS}
    )
    if isinstance(value, int):
        return int(value)
    return _float_literal(value)


#: The functions that translated code may name, beside the runtime's own.
HELPERS = {
    f"s_{f.__name__}": f
    for f in (
        scalars.wrap, scalars.wrap32, scalars.unsigned, scalars.divide, scalars.remainder, scalars.to_f32,
        scalars.to_f16, scalars.to_bf16, scalars.from_bf16, scalars.bits_of, scalars.from_bits,
        scalars.whole_bytes, scalars.float_divide, scalars.maximum, scalars.minimum,
        scalars.compare_floats, scalars.float_to_int,
    )
}  # fmt: skip

_AFFINE_TOKEN = re.compile(r"\s*(floordiv|ceildiv|mod|[ds]\d+|-?\d+|[()+*-])")


def _affine_expression(text: str, bound: dict[str, Scalar]) -> str:
    """An affine expression in Python: `(s0 + 7) floordiv 8` -> `((v1 + 7)//8)`."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _AFFINE_TOKEN.match(text, at)
        if not match:
            raise UntranslatableIR(f"affine expression {text!r} is not understood")
        tokens.append(match[1])
        at = match.end()
    position = 0

    def primary() -> str:
        nonlocal position
        token = tokens[position]
        position += 1
        if token == "(":
            inner = total()
            position += 1  # the closing bracket
            return inner
        if token == "-":
            return f"(-{primary()})"
        return str(bound[token]) if token in bound else token

    def term() -> str:
        nonlocal position
        left = primary()
        while position < len(tokens) and tokens[position] in ("*", "floordiv", "ceildiv", "mod"):
            operator = tokens[position]
            position += 1
            right = primary()
            left = {
                "*": f"({left}*{right})",
                "floordiv": f"({left}//{right})",
                "ceildiv": f"(-(-{left}//{right}))",
                "mod": f"({left}%{right})",
            }[operator]
        return left

    def total() -> str:
        nonlocal position
        left = term()
        while position < len(tokens) and tokens[position] not in (")",):
            operator = tokens[position]
            if operator in ("+", "-"):
                position += 1
                left = f"({left}{operator}{term()})"
            else:  # "s0 -1" tokenises the sign with the number
                left = f"({left}+{term()})"
        return left

    return total()


def walk_calls(module: Operation) -> Iterator[str]:
    """Names of the library calls in a module, in order, with repeats."""
    for operation in module.walk():
        if operation.name == "func.call":
            yield operation.properties["callee"].lstrip("@")
