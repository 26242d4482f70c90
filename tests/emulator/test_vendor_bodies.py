"""Our NumPy bodies against the vendor's own bitcode bodies, run on this CPU: equal to the last bit, for every
entry.

Shapes have tails, rows have gaps, axes broadcast. Bytes that the vendor's body changes beside its operands
must be those that the routine's `reach` declares. Exact equality includes the order of summation.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from bodies import View, compare, element_of

from monotile.targets.npuir.emulator import vendor
from monotile.targets.npuir.emulator.checks import misalignment
from monotile.targets.npuir.emulator.library import Operand, UnknownRoutine, dtype, itemsize, resolve

T = r"(bfloat16_t|float|half|u?int(?:8|16|32|64)_t|bool)"

#: Entries without a body of ours, with the reason. The emulator refuses a kernel that calls one.
NOT_EMULATED = {
    r"print_.*|assert_.*|init_debug|finish_debug": "debug output",
    r"(sync_block_(un)?lock|free_lock_var)(_with_subblock)?": "locks between blocks; blocks run in turn here",
    r".*_bool": "bits in more than one dimension, or moved without a cast",
    r"broadcast_.*bool.*": "bits",
    r"broadcast_1d_u?int8_t": "fills whole pieces of 16-bit elements beyond its result",
    r"vsel_vv_1d_int8_t_int64_t": "its condition is neither bits nor bytes that are 0 or not",
    r"vcast_uint8_t_to_.*_with_temp": "tests one bit of a byte, not the byte",
    r"reduce_(andi|ori|xori)_.*_(u?int8_t|u?int64_t|uint16_t|uint32_t)": "no kernel reduces these",
    r"reduce_prod_(r|ar)_(float|half)": "its order of multiplication has not been worked out",
    r"reduce_(max|min)_with_index_.*_half": "its index stays 16 bits wide when run here",
    r"transpose_(2d|3d)_with_last_axis_u?int64_t": "crashes when run here: it follows a null scratch buffer",
    r"deinterleave_channel_0_from_n_channels_[12]d_.*": "the number of channels is not among its operands",
    r"mul_extended_1d_int16_t|vpow_1d_int32_t": "no kernel uses it",
}
#: Operands with which a vendor body cannot be run here, with the reason.
NOT_RUN = {
    r"v(and|or|xor)_[23]d_u?int(8|64)_t": "broadcasts its last axis with a function that the bitcode lacks",
}


class Cases:
    """Operands for one entry, from a generator seeded with its name."""

    def __init__(self, entry: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(entry.encode()))

    def values(self, element: str, count: int, kind: str = "any") -> np.ndarray:
        if element == "bf16":
            return (self.rng.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(
                np.uint16
            )
        if element == "i1":
            return self.rng.integers(0, 256, count, dtype=np.uint8)
        to = dtype(element)
        if to.kind == "f":
            numbers = self.rng.standard_normal(count) * np.exp(self.rng.standard_normal(count) * 2)
            return (np.abs(numbers) + 0.1 if kind == "positive" else numbers).astype(to)
        limits = np.iinfo(to)
        return self.rng.integers(limits.min, limits.max, count, dtype=to, endpoint=True)

    def tile(self, element: str, sizes: tuple[int, ...], kind: str = "any", gap: int = 0) -> View:
        """A tile whose rows start at blocks, `gap` blocks apart."""
        count = int(np.prod(sizes))
        return View(element, sizes, aligned(element, sizes, gap), self.values(element, count, kind))

    def scalar(self, element: str, kind: str = "any") -> int | float:
        value = self.values(element, 1, kind)[0]
        return float(value) if dtype(element).kind == "f" else int(value)

    def scratch(self, element: str, count: int) -> View:
        return View(element, (count,))


def aligned(element: str, sizes: tuple[int, ...], gap: int = 0) -> tuple[int, ...]:
    in_block = 32 // itemsize(element)
    strides = [1]
    for size in reversed(sizes[1:]):
        row = -(-strides[0] * size // in_block) * in_block
        strides.insert(0, row + (gap * in_block if len(strides) == 1 else 0))
    return tuple(strides)


def result(element: str, sizes: tuple[int, ...], gap: int = 0) -> View:
    return View(element, sizes, aligned(element, sizes, gap))


SHAPES: dict[int, list[tuple[int, ...]]] = {
    1: [(1,), (7,), (64,), (200,), (3000,)],
    2: [(4, 64), (3, 40), (7, 200), (1, 16), (120, 8)],
    3: [(2, 3, 64), (3, 2, 40), (2, 1, 24)],
}

Case = tuple[str, list[Any]]
Family = Callable[[str, "re.Match[str]"], Iterator[list[Any]]]
FAMILIES: list[tuple[str, re.Pattern[str], Family]] = []


def family(name: str, pattern: str) -> Callable[[Family], Family]:
    def register(make: Family) -> Family:
        FAMILIES.append((name, re.compile(pattern), make))
        return make

    return register


@family("binary", rf"v(add|sub|mul|div|max|min|and|or|xor)_([123])d_{T}")
def binary(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element, rank = Cases(entry), element_of(match[3]), int(match[2])
    kind = "positive" if match[1] == "div" else "any"
    for sizes in SHAPES[rank]:
        seconds = [sizes]
        if rank > 1:
            seconds.append((1, *sizes[1:]))
            if not any(re.fullmatch(p, entry) for p in NOT_RUN):
                seconds.append((*sizes[:-1], 1))
        for second in seconds:
            yield [
                make.tile(element, sizes, kind),
                make.tile(element, second, kind, gap=1 if second == sizes and rank > 1 else 0),
                result(element, sizes),
                make.scratch(element, 9000),
            ]


@family("with a scalar", rf"v(add|sub|mul|div|max|min|shl|shr)s?_(vs|sv)_([123])d_{T}")
def with_scalar(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[4])
    kind = "positive" if match[1] == "div" else "any"
    for sizes in SHAPES[int(match[3])]:
        number = (
            int(make.rng.integers(0, 8 * itemsize(element)))
            if match[1] in ("shl", "shr")
            else make.scalar(element, kind)
        )
        vector = make.tile(element, sizes, kind)
        yield [
            *([vector, number] if match[2] == "vs" else [number, vector]),
            result(element, sizes),
            make.scratch(element, 9000),
        ]


@family("unary", rf"v(abs|exp|ln|sqrt|rsqrt|rec|relu|not)_([123])d_{T}")
def unary(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[3])
    for sizes in SHAPES[int(match[2])]:
        kind = "positive" if match[1] in ("ln", "sqrt", "rsqrt", "rec") else "any"
        yield [make.tile(element, sizes, kind), result(element, sizes), make.scratch(element, 9000)]


@family("compare", rf"vcmp(s?)_(eq|ne|lt|le|gt|ge)_1d_{T}")
def compare_(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[3])
    for (count,) in SHAPES[1]:
        first = make.values(element, count)
        second = np.where(make.rng.random(count) < 0.5, first, make.values(element, count))
        other = first[0].item() if match[1] else View(element, (count,), values=second)
        yield [View(element, (count,), values=first), other, View("i1", (count,))]


@family("select", rf"vsel_(vv|vs|sv|ss)_1d_(?:bool_)?{T}")
def select(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for (count,) in SHAPES[1]:
        sources = [make.tile(element, (count,)) if form == "v" else make.scalar(element) for form in match[1]]
        condition = View("i1", (count,), values=make.values("i1", (count + 7) // 8))
        yield [condition, *sources, result(element, (count,)), make.scratch(element, 64)]


@family("bits", r"v(and|or|xor|not)_1d_bool")
def bits(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make = Cases(entry)
    for count in (8, 64, 200, 3000):
        sources = [
            View("i1", (count,), values=make.values("i1", (count + 7) // 8))
            for _ in range(1 + (match[1] != "not"))
        ]
        yield [*sources, View("i1", (count,)), View("i1", (9000,))]


EDGES = [
    0.5, 1.5, -0.5, -2.5, 0.49999997, np.inf, -np.inf, np.nan, 1e30, -1e30, -0.0, 127.5, 128.0, 255.5, -128.5,
    32767.5, 65504, 65520, 65519.9, 2147483520, 2147483648, -2147483648, 2049.0, 2051.0,
]  # fmt: skip


@family("cast", rf"vcast_{T}_to_{T}_([12])d_with_(mode|overflow|temp)")
def cast(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, source, target = Cases(entry), element_of(match[1]), element_of(match[2])
    shapes = SHAPES[2] if match[3] == "2" else [(1,), (37,), (200,), (1024,), (3000,)]
    for sizes in shapes:
        count = int(np.prod(sizes))
        if source == "i1":
            packed = -(-sizes[-1] // 8)
            values = make.values("i1", count // sizes[-1] * packed)
            operand = View("i1", sizes, (-(-sizes[-1] // 256) * 256, 1) if len(sizes) == 2 else (), values)
        elif dtype(source).kind == "f" or source == "bf16":
            spread = np.exp(make.rng.uniform(-3, 14, count))
            floats = (make.rng.standard_normal(count) * spread).astype(np.float32)
            floats[: len(EDGES)] = np.array(EDGES, np.float32)[:count]
            with np.errstate(over="ignore"):
                values = floats.astype(np.float16) if source == "f16" else floats
            if source == "bf16":
                values = (floats.view(np.uint32) >> 16).astype(np.uint16)
            operand = View(source, sizes, aligned(source, sizes), values)
        else:
            values = make.values(source, count)
            if itemsize(source) == 8:
                values >>= make.rng.integers(11, 60, count)
            operand = View(source, sizes, aligned(source, sizes), values)
        for mode in range(5) if match[4] == "mode" else (0,):
            scratch = (
                [make.scratch(target if source == "i1" else source, 12000)] if match[4] != "mode" else []
            )
            yield [operand, result(target, sizes), *scratch, mode]


@family("copy", rf"copy_ubuf_to_ubuf_([123])d_{T}")
def copy(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for sizes in SHAPES[int(match[1])]:
        yield [make.tile(element, sizes), result(element, sizes, gap=1 if len(sizes) > 1 else 0)]


def rows_in_memory(element: str, sizes: tuple[int, ...], values: np.ndarray | None = None) -> View:
    """A view of global memory whose rows are three elements longer than those read."""
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * (size + 3))
    return View(element, sizes, tuple(strides), values, space="gm")


@family("load", rf"load_gm_to_ubuf_([123])d_{T}")
def load(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for sizes in SHAPES[int(match[1])]:
        memory = rows_in_memory(element, sizes, make.values(element, int(np.prod(sizes))))
        yield [memory, result(element, sizes, gap=1 if len(sizes) > 1 else 0), 0, 0, 0]
    if match[1] == "1":  # a column: every element a block of its own
        in_block = 32 // itemsize(element)
        yield [
            View(element, (9,), (5,), make.values(element, 9), "gm"),
            View(element, (9,), (in_block,)),
            0,
            0,
            0,
        ]


@family("padded load", rf"load_gm_to_ubuf_([12])d_{T}")
def padded_load(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    """The result is viewed with its padding, which lies beside the operand."""
    make, element = Cases(entry), element_of(match[2])
    if itemsize(element) == 8:
        return
    in_block = 32 // itemsize(element)
    for left in (0, 3):
        for row in (1, in_block - left, 2 * in_block + 1):
            sizes = (row,) if match[1] == "1" else (4, row)
            memory = rows_in_memory(element, sizes, make.values(element, int(np.prod(sizes))))
            target = result(element, sizes, gap=1 if len(sizes) > 1 else 0)
            target.shift = left
            target.strides = (4 * in_block, 1)[-len(sizes) :]
            target.before, target.after = left, -(left + row) % in_block
            yield [memory, target, 2, make.scalar(element), left]


@family("store", rf"store_ubuf_to_gm_([123])d_{T}")
def store(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for sizes in SHAPES[int(match[1])]:
        yield [make.tile(element, sizes), rows_in_memory(element, sizes), 0]
    if match[1] == "1":
        in_block = 32 // itemsize(element)
        yield [
            View(element, (9,), (in_block,), make.values(element, 9)),
            View(element, (9,), (5,), space="gm"),
            0,
        ]


@family("fill", rf"broadcast_scalar_{T}_to_([12])d")
def fill(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[1])
    for sizes in SHAPES[int(match[2])]:
        yield [make.scalar(element), result(element, sizes)]


@family("broadcast", rf"broadcast_(first|middle|last)_axis_(align|unalign|unknown_align)_([23])d_{T}")
def broadcast(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element, rank = Cases(entry), element_of(match[4]), int(match[3])
    axis = {"first": 0, "middle": 1, "last": rank - 1}[match[1]]
    for sizes in (
        [(4, 64), (3, 48), (7, 208), (1, 32), (120, 32)]
        if rank == 2
        else [(2, 3, 64), (3, 2, 32), (5, 7, 32)]
    ):
        if match[2] != "align":
            sizes = (*sizes[:-1], sizes[-1] - 3)
        small = tuple(1 if k == axis else n for k, n in enumerate(sizes))
        values = make.values(element, int(np.prod(small)))
        strides = aligned(element, sizes) if match[2] == "align" else ()
        scratch = [make.scratch(element, 9000)] if match[1] == "last" or match[2] != "align" else []
        gaps = (
            [aligned(element, small), ()]
            if axis == rank - 1 and match[2] == "align"
            else [() if match[2] != "align" else aligned(element, small)]
        )
        for source in gaps:  # a column may have its rows a block apart, or without gaps
            yield [View(element, small, source, values), View(element, sizes, strides), *scratch]


@family("broadcast one", rf"broadcast_1d_{T}")
def broadcast_one(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[1])
    for sizes in SHAPES[1]:
        yield [View(element, (1,), values=make.values(element, 1)), result(element, sizes)]


NEUTRAL = {"sum": 0, "prod": 1, "andi": -1, "ori": 0, "xori": 0}


@family("reduce", rf"(?:enablevc_)?reduce_(sum|prod|max|min|andi|ori|xori)_(r|ar|ra|ra0a1)_{T}")
def reduce(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element, form = Cases(entry), element_of(match[3]), match[2]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "r": [(5,), (64,), (100,), (576,), (1000,), (3000,), (7168,)],
        "ar": [
            (4, 64),
            (3, 100),
            (8, 576),
            (1, 40),
            (40, 16),
            (5, 7),
            (9, 24),
            (2, 2048),
            (1, 7168),
            (65, 8),
        ],
        "ra": [(4, 64), (7, 40), (13, 24), (16, 576), (1, 16), (40, 8), (100, 40), (3, 8), (2, 16)],
        "ra0a1": [(5, 3, 32), (2, 2, 64), (9, 4, 96), (1, 2, 32)],
    }
    to = dtype(element)
    worst: int | float = -np.inf if match[1] == "max" else np.inf
    if to.kind != "f":
        worst = int(np.iinfo(to).min if match[1] == "max" else np.iinfo(to).max)
    for sizes in shapes[form]:
        count = int(np.prod(sizes))
        values = make.rng.standard_normal(count).astype(to) if to.kind == "f" else make.values(element, count)
        kept = {"r": (1,), "ar": (sizes[0], 1), "ra": (1, *sizes[1:]), "ra0a1": (1, *sizes[1:])}[form]
        outputs = [result(element, kept)] + ([View(element, kept, (1, 1))] if form == "ar" else [])
        for output in outputs:
            yield [
                View(element, sizes, aligned(element, sizes), values),
                output,
                make.scratch(element, 16000 if itemsize(element) == 4 else 24000),
                NEUTRAL.get(match[1], worst),
            ]


@family("reduce with index", r"reduce_(max|min)_with_index_(r|ar|ra)_(float)")
def reduce_with_index(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, form = Cases(entry), match[2]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "r": [(5,), (64,), (100,), (1000,), (3000,)],
        "ar": [(4, 64), (3, 100), (8, 576), (1, 40), (40, 16)],
        "ra": [(4, 64), (7, 40), (16, 576), (1, 16), (40, 8)],
    }
    for sizes in shapes[form]:
        values = make.rng.integers(-9, 9, int(np.prod(sizes))).astype(np.float32)  # many equal values
        kept = {"r": (1,), "ar": (sizes[0], 1), "ra": (1, *sizes[1:])}[form]
        worst = [-np.inf if match[1] == "max" else np.inf] if form != "ra" else []
        yield [
            View("f32", sizes, aligned("f32", sizes), values),
            result("f32", kept),
            result("i32", kept),
            make.scratch("f32" if form != "ra" else "i32", 12000),
            *worst,
        ]


@family("transpose", rf"transpose_2d_with_last_axis_{T}")
def transpose(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[1])
    for sizes in [
        (16, 16),
        (32, 64),
        (8, 8),
        (5, 7),
        (13, 20),
        (100, 40),
        (24, 24),
        (40, 100),
        (1, 16),
        (16, 1),
    ]:
        for gap in (0, 1):
            yield [make.tile(element, sizes), result(element, sizes[::-1], gap)]


@family("transpose 3d", rf"transpose_3d_with(out)?_last_axis_{T}")
def transpose_3d(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    sizes = (3, 5, 40) if match[1] else (32, 2, 32)
    order = (1, 0, 2) if match[1] else (2, 1, 0)
    yield [make.tile(element, sizes), result(element, tuple(sizes[k] for k in order))]


@family("arange", rf"arange_([123])d_{T}")
def arange(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    element, rank = element_of(match[2]), int(match[1])
    for sizes in SHAPES[rank]:
        if element == "f16" and int(np.prod(sizes)) > 1000:
            continue  # beyond 2048 halves skip numbers, and the two orders of addition differ
        yield [result(element, sizes), 3, *[2, 5, 7][:rank]]


@family("gather", rf"gather_1d_{T}")
def gather(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[1])
    for sizes in SHAPES[1]:
        where = View("i32", sizes, values=make.rng.integers(0, 500, sizes[0]))
        yield [make.tile(element, (500,)), where, result(element, sizes), make.scratch("i32", sizes[0])]


@family("interleave", rf"interleave_1d_{T}")
def interleave(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[1])
    for count in (1, 7, 64, 200, 1000):
        tile = make.tile(element, (count,))
        yield [
            tile,
            make.tile(element, (count,)),
            result(element, (2 * count,)),
            make.scratch(element, 24000),
        ]


@family("deinterleave", rf"deinterleave_channel_([01])_from_2_channels_1d_{T}")
def deinterleave(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for (count,) in SHAPES[1]:
        yield [make.tile(element, (2 * count,)), result(element, (count,))]


@family("cumulative", rf"cum(sum|prod)_ra_{T}")
def cumulative(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for sizes in SHAPES[2]:
        yield [make.tile(element, sizes), result(element, sizes)]


@family("flip", rf"flip_1d_{T}")
def flip(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[1])
    for sizes in SHAPES[1]:
        yield [make.tile(element, sizes), result(element, sizes)]


@family("sort", rf"sort(_with_index)?_1d_{T}")
def sort(entry: str, match: re.Match[str]) -> Iterator[list[Any]]:
    make, element = Cases(entry), element_of(match[2])
    for count in (1, 5, 32, 33, 100, 128, 500, 1000):
        for descending in (0, 1):
            values = make.values(element, count)
            values[: count // 2] = values[count // 2 : count // 2 * 2]  # equal keys keep their order
            index = [result("i32", (count,))] if match[1] else []
            scratch = make.scratch(element, 8 * count + 4096)
            yield [
                View(element, (count,), values=values),
                result(element, (count,)),
                *index,
                scratch,
                descending,
            ]


def reason(table: dict[str, str], entry: str) -> str | None:
    return next((why for pattern, why in table.items() if re.fullmatch(pattern, entry)), None)


def covered(entry: str) -> list[tuple[str, re.Match[str], Family]]:
    return [(n, m, make) for n, p, make in FAMILIES if (m := p.fullmatch(entry))]


@pytest.mark.parametrize("name", [name for name, _, _ in FAMILIES])
def test_bodies_equal_the_vendors(name: str) -> None:
    _, pattern, make = next(f for f in FAMILIES if f[0] == name)
    entries = []
    for entry in vendor.library().entries():
        match = pattern.fullmatch(entry)
        if match and (name == "bits" or reason(NOT_EMULATED, entry) is None):
            entries.append((entry, match))
    assert entries, f"no entry of the library is a {name}"
    vendor.machine().compile([entry for entry, _ in entries])
    wrong: list[str] = []
    for entry, match in entries:
        compared = 0
        for operands in make(entry, match):
            outcome = compare(entry, operands)
            shown = [(o.sizes, o.strides) if isinstance(o, View) else o for o in operands]
            wrong += [f"{entry} {shown}: {d}" for d in outcome.differences()]
            if outcome.strayed:
                wrong.append(f"{entry} {shown}: the vendor also changes UB bytes {outcome.strayed[:3]}...")
            compared += 1
        if not compared and name != "padded load":
            wrong.append(f"{entry}: no case")
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:20])


def test_every_entry_is_accounted_for() -> None:
    """An entry has a body that is compared above, or stands in NOT_EMULATED and is refused."""
    lost = []
    for entry in vendor.library().entries():
        if covered(entry) and (
            reason(NOT_EMULATED, entry) is None
            or entry in ("vand_1d_bool", "vor_1d_bool", "vxor_1d_bool", "vnot_1d_bool")
        ):
            continue
        if reason(NOT_EMULATED, entry) is None:
            lost.append(entry)
    assert not lost


@pytest.mark.parametrize(
    ("entry", "operands"),
    [
        ("reduce_prod_ar_float", [Operand("f32", 2, "ub")] * 3 + [Operand("f32")]),
        ("vsel_vv_1d_int8_t_int64_t", [Operand("i8", 1, "ub")] + [Operand("i64", 1, "ub")] * 4),
        ("transpose_2d_with_last_axis_int64_t", [Operand("i64", 2, "ub")] * 2),
        ("mul_extended_1d_int16_t", [Operand("i16", 1, "ub")] * 5),
        ("vfrobnicate_1d_float", [Operand("f32", 1, "ub")] * 2),
    ],
)
def test_an_entry_without_a_body_is_refused_by_name(entry: str, operands: list[Operand]) -> None:
    with pytest.raises(UnknownRoutine, match=entry):
        resolve(entry, tuple(operands))


def column(element: str, count: int, stride: int, values: np.ndarray | None = None) -> View:
    return View(element, (count,), (stride,), values)


@pytest.mark.parametrize(
    ("entry", "operands"),
    [
        (
            "vadd_1d_float",
            [column("f32", 8, 8), column("f32", 8, 8), column("f32", 8, 8), column("f32", 64, 1)],
        ),
        (
            "vadd_1d_float",
            [column("f32", 8, 1), column("f32", 8, 8), column("f32", 8, 1), column("f32", 64, 1)],
        ),
        ("vmuls_vs_1d_float", [column("f32", 8, 8), 2.0, column("f32", 8, 8), column("f32", 64, 1)]),
        ("vabs_1d_float", [column("f32", 8, 8), column("f32", 8, 8), column("f32", 64, 1)]),
        ("copy_ubuf_to_ubuf_1d_float", [column("f32", 8, 8), column("f32", 8, 1)]),
        (
            "vadd_2d_float",
            [View("f32", (8, 3), (5, 1))] * 2 + [View("f32", (8, 3), (5, 1)), column("f32", 64, 1)],
        ),
        (
            "vadd_2d_float",
            [View("f32", (8, 1), (1, 1))] * 2 + [View("f32", (8, 1), (1, 1)), column("f32", 64, 1)],
        ),
        ("broadcast_scalar_float_to_1d", [2.0, column("f32", 8, 8)]),
    ],
)
def test_strides_that_the_checks_refuse_are_wrong_in_the_vendors_body(
    entry: str, operands: list[Any]
) -> None:
    """The alignment rule is no taste of ours: a vendor body given such operands computes something else, or
    faults.
    """
    views = [o for o in operands if isinstance(o, View)]
    faults = [
        misalignment(0, v.sizes, tuple(s * itemsize(v.element) for s in v.strides), itemsize(v.element))
        for v in views
    ]
    assert any(faults)
    make = Cases(entry)
    fresh: list[Any] = []
    for operand in operands:
        if isinstance(operand, View):
            values = make.values(operand.element, int(np.prod(operand.sizes)), "positive")
            operand = View(operand.element, operand.sizes, operand.strides, values)
        fresh.append(operand)
    try:
        assert compare(entry, fresh).differences()
    except vendor.VendorBodyFailed as error:
        assert "no multiple of 32" in str(error)
