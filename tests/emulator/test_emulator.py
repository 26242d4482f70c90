"""Translation and execution of final IR: results, reports, arguments, threads, refusals, speed."""

from __future__ import annotations

import pickle
import threading
import time

import numpy as np
import pytest
from modules_on_disk import UB_BYTES, Written, compiled, memref

from monotile.targets.npuir import abi
from monotile.targets.npuir.emulator import (
    EmulatorFault,
    IRSyntaxError,
    Program,
    UnknownRoutine,
    UntranslatableIR,
)
from monotile.targets.npuir.emulator.parse import MemRefType, memref_type, parse, split


def scaled_sum() -> Program:
    return Program.from_ir(compiled("scaled_sum"), op="test.scaled_sum", ub_bytes=UB_BYTES)


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((2, rows, 64)).astype(np.float32)
    return a, b, np.full((rows, 64), 7, np.float32)


def packed(arrays: tuple[np.ndarray, ...], *scalars: int) -> list[object]:
    return abi.pack([a.reshape(-1) for a in arrays], scalars)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (16, 3), (100, 1), (100, 2), (700, 40), (0, 4)])
def test_a_kernel_computes_what_it_says(rows: int, blocks: int, checked: bool) -> None:
    a, b, out = inputs(rows)
    report = scaled_sum().run(packed((a, b, out), rows), blocks=blocks, checked=checked)
    np.testing.assert_array_equal(out, (a + b) * np.float32(2))
    assert report.blocks == blocks
    assert report.bytes_read == 2 * rows * 64 * 4
    assert report.bytes_written == rows * 64 * 4
    turns = -(-rows // 16)
    assert report.calls["vadd_1d_float"] == report.calls["store_ubuf_to_gm_1d_float"] == turns
    assert report.calls["load_gm_to_ubuf_1d_float"] == 2 * turns
    assert report.calls["broadcast_scalar_float_to_1d"] == (2 if rows % 16 else 0)


def test_checked_runs_say_where_they_looked_at_order() -> None:
    a, b, out = inputs(700)
    report = scaled_sum().run(packed((a, b, out), 700), blocks=40, checked=True)
    assert report.findings == ("pipe order checked in blocks [0, 3]",)  # 44 tiles: the last is block 3's


@pytest.mark.parametrize("checked", [False, True])
def test_scalar_loads_and_branches(checked: bool) -> None:
    program = Program.from_ir(compiled("pick_rows"), op="test.pick_rows", ub_bytes=UB_BYTES)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((50, 128)).astype(np.float16)
    where = rng.integers(-1, 50, 41).astype(np.int32)
    out = np.full((41, 128), 9, np.float16)
    report = program.run([x.reshape(-1), where, out.reshape(-1), 41], blocks=3, checked=checked)
    np.testing.assert_array_equal(out, np.where(where[:, None] >= 0, x[np.maximum(where, 0)], 0))
    assert report.scalar_loads == 41
    assert report.calls["broadcast_scalar_half_to_1d"] == int((where < 0).sum())


def test_parameters_and_ub() -> None:
    program = scaled_sum()
    kinds = [(p.kind, p.dtype) for p in program.parameters]
    assert kinds[:3] == [("scalar", "i64"), ("tensor", "i8"), ("tensor", "i8")]
    assert kinds[3:6] == [("tensor", "f32")] * 3
    assert kinds[6:] == [("scalar", "i32")] * 7
    assert [(p.read, p.written) for p in program.parameters[3:6]] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert program.ub_used == 4 * 16 * 64 * 4  # two tiles, double-buffered
    assert program.calls[0] == "broadcast_scalar_float_to_1d"


def test_a_program_survives_pickling() -> None:
    program = scaled_sum()
    a, b, out = inputs(20)
    program.run(packed((a, b, out), 20), blocks=1)
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    out[:] = 0
    again.run(packed((a, b, out), 20), blocks=1)
    np.testing.assert_array_equal(out, (a + b) * np.float32(2))


def test_threads_share_a_program() -> None:
    program = scaled_sum()
    cases = [inputs(200 + k) for k in range(8)]

    def work(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        for _ in range(5):
            program.run(packed(case, case[0].shape[0]), blocks=4)

    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b, out in cases:
        np.testing.assert_array_equal(out, (a + b) * np.float32(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda args: args[:-1], "12 arguments given, 13 needed"),
        (lambda args: [*args[:3], args[3].astype(np.float64), *args[4:]], "argument 3 is float64"),
        (lambda args: [*args[:3], args[3][::2], *args[4:]], "argument 3"),
        (lambda args: [*args[:3], 5, *args[4:]], "argument 3 is 5"),
        (lambda args: [*args[:6], args[3], *args[7:]], "argument 6 is an array"),
    ],
)
def test_arguments_must_fit(change: object, message: str) -> None:
    a, b, out = inputs(20)
    with pytest.raises(ValueError, match=message):
        scaled_sum().run(change(packed((a, b, out), 20)), blocks=1)  # type: ignore[operator]


def test_blocks_must_be_positive() -> None:
    with pytest.raises(ValueError, match="blocks is 0"):
        scaled_sum().run(packed(inputs(20), 20), blocks=0)


def test_views_of_eight_bits_and_bf16_are_taken_by_size() -> None:
    kernel = Written(memref(["?"], "i8", "gm"), memref(["?"], "bf16", "gm"))
    program = Program.from_ir(kernel.text(), op="test.sizes", ub_bytes=1024)
    program.run([np.zeros(4, np.uint8), np.zeros(4, np.uint16)], blocks=1)
    program.run([np.zeros(4, np.int8), np.zeros(4, np.float16)], blocks=1)
    with pytest.raises(ValueError, match="argument 1 is float32"):
        program.run([np.zeros(4, np.int8), np.zeros(4, np.float32)], blocks=1)


# ---- scalar code


@pytest.mark.parametrize(
    ("op", "properties", "types", "values", "expected"),
    [
        ("arith.addi", "", "i32", (2**31 - 1, 1), -(2**31)),
        ("arith.muli", "", "i32", (65536, 65537), 65536),
        ("arith.muli", "", "index", (65536, 65537), 65536 * 65537),
        ("arith.subi", "", "i8", (-128, 1), 127),
        ("arith.divsi", "", "i32", (-7, 2), -3),
        ("arith.remsi", "", "i32", (-7, 2), -1),
        ("arith.floordivsi", "", "i32", (-7, 2), -4),
        ("arith.ceildivsi", "", "i32", (7, 2), 4),
        ("arith.ceildivsi", "", "i32", (-7, 2), -3),
        ("arith.divui", "", "i32", (-2, 2), 2**31 - 1),
        ("arith.shrui", "", "i32", (-1, 28), 15),
        ("arith.shrsi", "", "i32", (-16, 2), -4),
        ("arith.shli", "", "i32", (1, 31), -(2**31)),
        ("arith.minsi", "", "i32", (-3, 4), -3),
        ("arith.maxui", "", "i32", (-3, 4), -3),
        ("arith.andi", "", "i32", (12, 10), 8),
        ("arith.xori", "", "i32", (12, 10), 6),
    ],
)
def test_integer_operations(
    op: str, properties: str, types: str, values: tuple[int, int], expected: int
) -> None:
    """Once with constants, which are folded, and once with arguments, which are not."""
    for folded in (True, False):
        kernel = Written(*([types, types] if not folded else []), memref(["?"], "i64", "gm"))
        names = [kernel.constant(v, types) for v in values] if folded else ["%arg0", "%arg1"]
        result = kernel.op(f'"{op}"({names[0]}, {names[1]}) : ({types}, {types}) -> {types}', "r")
        wide = result
        if types != "i64":
            wide = kernel.op(
                f'"{"arith.index_cast" if types == "index" else "arith.extsi"}"({result}) : ({types}) -> i64',
                "r",
            )
        zero = kernel.constant(0, "index")
        out = f"%arg{0 if folded else 2}"
        kernel.op(f'"memref.store"({wide}, {out}, {zero}) : (i64, {memref(["?"], "i64", "gm")}, index) -> ()')
        memory = np.zeros(1, np.int64)
        program = Program.from_ir(kernel.text(), op="test.scalar", ub_bytes=1024)
        program.run([*([] if folded else values), memory], blocks=1)
        assert int(memory[0]) == expected


def test_floats_round_to_their_type_and_compare() -> None:
    kernel = Written("f32", "f32", memref(["?"], "f32", "gm"))
    total = kernel.op('"arith.addf"(%arg0, %arg1) : (f32, f32) -> f32', "r")
    ratio = kernel.op('"arith.divf"(%arg0, %arg1) : (f32, f32) -> f32', "r")
    less = kernel.op('"arith.cmpf"(%arg0, %arg1) <{predicate = 4 : i64}> : (f32, f32) -> i1', "r")
    chosen = kernel.op(f'"arith.select"({less}, %arg0, %arg1) : (i1, f32, f32) -> f32', "r")
    for k, value in enumerate((total, ratio, chosen)):
        at = kernel.constant(k, "index")
        kernel.op(f'"memref.store"({value}, %arg2, {at}) : (f32, {memref(["?"], "f32", "gm")}, index) -> ()')
    program = Program.from_ir(kernel.text(), op="test.floats", ub_bytes=1024)
    for a, b in ((0.1, 0.2), (1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (float("nan"), 1.0), (3e38, 3e38)):
        a32, b32 = np.float32(a), np.float32(b)
        memory = np.zeros(3, np.float32)
        program.run([float(a32), float(b32), memory], blocks=1)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(memory, [a32 + b32, a32 / b32, a32 if a32 < b32 else b32])


def test_affine_maps_loops_and_while() -> None:
    before = "#map = affine_map<(d0)[s0] -> (d0 ceildiv 3 + (s0 - 1) floordiv 2, d0 * 2 - 1, 100)>\n"
    kernel = Written("index", "index", memref(["?"], "i64", "gm"))
    least = kernel.op('"affine.min"(%arg0, %arg1) <{map = #map}> : (index, index) -> index', "r")
    zero, one = kernel.constant(0, "index"), kernel.constant(1, "index")
    start, limit = kernel.constant(5, "i64"), kernel.constant(1000, "i64")
    kernel.lines += [
        f'%sum:2 = "scf.for"({zero}, {least}, {one}, {start}, {start}) ({{',
        "^bb0(%k: index, %s: i64, %t: i64):",
        '  %k64 = "arith.index_cast"(%k) : (index) -> i64',
        '  %s2 = "arith.addi"(%s, %k64) : (i64, i64) -> i64',
        '  "scf.yield"(%t, %s2) : (i64, i64) -> ()',  # swapped: both are assigned at once
        "}) : (index, index, index, i64, i64) -> (i64, i64)",
        '%w = "scf.while"(%sum#0) ({',
        "^bb0(%v: i64):",
        f'  %c = "arith.cmpi"(%v, {limit}) <{{predicate = 2 : i64}}> : (i64, i64) -> i1',
        '  "scf.condition"(%c, %v) : (i1, i64) -> ()',
        "}, {",
        "^bb0(%v: i64):",
        '  %d = "arith.addi"(%v, %v) : (i64, i64) -> i64',
        '  "scf.yield"(%d) : (i64) -> ()',
        "}) : (i64) -> i64",
    ]
    for k, value in enumerate(("%sum#0", "%sum#1", "%w")):
        at = kernel.constant(k, "index")
        kernel.op(f'"memref.store"({value}, %arg2, {at}) : (i64, {memref(["?"], "i64", "gm")}, index) -> ()')
    program = Program.from_ir(kernel.text(before), op="test.flow", ub_bytes=1024)
    for d, s in ((7, 5), (2, 100), (0, 3)):
        memory = np.zeros(3, np.int64)
        program.run([d, s, memory], blocks=1)
        first, second = 5, 5
        for k in range(min(-(-d // 3) + (s - 1) // 2, d * 2 - 1, 100)):
            first, second = second, first + k
        last = first
        while last < 1000:
            last += last
        assert memory.tolist() == [first, second, last]


# ---- refusals


def test_an_unknown_operation_is_named() -> None:
    kernel = Written()
    kernel.op('"hivm.hir.vfrobnicate"() : () -> ()')
    with pytest.raises(UntranslatableIR, match=r"hivm\.hir\.vfrobnicate.*line 4"):
        Program.from_ir(kernel.text(), op="test.unknown", ub_bytes=1024)


def test_an_unknown_library_call_is_named() -> None:
    kernel = Written()
    kernel.call("vfrobnicate_1d_float", kernel.buffer(0, (8,), "f32"))
    with pytest.raises(UnknownRoutine, match=r"vfrobnicate_1d_float\(f32\[1d\]\)"):
        Program.from_ir(kernel.text(), op="test.unknown", ub_bytes=1024)


@pytest.mark.parametrize(
    "text", ["", "module {\n}\n", '"builtin.module"() ({\n  "func.func"() <{a = [1, 2}> : () -> ()\n']
)
def test_text_that_is_not_generic_mlir_is_refused(text: str) -> None:
    with pytest.raises(IRSyntaxError):
        Program.from_ir(text, op="test.syntax", ub_bytes=1024)


def test_parsing_types_and_lists() -> None:
    assert memref_type("memref<?x8xf32, strided<[?, 1], offset: ?>, #hivm.address_space<gm>>") == MemRefType(
        (None, 8), "f32", (None, 1), None, "gm"
    )
    assert memref_type("memref<i8, #hivm.address_space<ub>>") == MemRefType((), "i8", None, 0, "ub")
    assert split('a<b, c>, "x, y", (d0, d1) -> (d0)') == ["a<b, c>", '"x, y"', "(d0, d1) -> (d0)"]
    module = parse(compiled("scaled_sum"))
    names = [op.name for op in module.walk()]
    assert names.count("scf.for") == 1 and names.count("scf.if") == 1
    lines = compiled("scaled_sum").splitlines()
    assert all(op.name in lines[op.line - 1] for op in module.walk())


def test_locations_in_the_text_do_not_matter() -> None:
    plain = compiled("pick_rows")
    located = "".join(
        line + (' loc("kernel.mlir":3:7)\n' if line.endswith(("index", "-> ()", "i1")) else "\n")
        for line in plain.splitlines()
    )
    assert located != plain
    program = Program.from_ir(located, op="test.located", ub_bytes=UB_BYTES)
    assert program.calls == Program.from_ir(plain, op="test.plain", ub_bytes=UB_BYTES).calls


# ---- library calls seen through whole programs


def test_a_padded_load_fills_its_last_block_and_its_left() -> None:
    kernel = Written(memref([5], "f32", "gm"), memref([8], "f32", "gm"))
    whole, whole_type = kernel.buffer(0, (8,), "f32")
    offset = kernel.constant(2, "index")
    kernel.lines.append(
        f'%part = "memref.subview"({whole}, {offset}) <{{static_offsets = array<i64: -9223372036854775808>, '
        "static_sizes = array<i64: 5>, static_strides = array<i64: 1>}> : "
        f"({whole_type}, index) -> {memref([5], 'f32')}"
    )
    mode, value, left = kernel.constant(2, "i32"), kernel.constant(3.5, "f32"), kernel.constant(2, "index")
    part = ("%part", memref([5], "f32"))
    kernel.call(
        "load_gm_to_ubuf_1d_float",
        ("%arg0", memref([5], "f32", "gm")),
        part,
        (mode, "i32"),
        (value, "f32"),
        (left, "index"),
    )
    kernel.op('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()')
    kernel.call(
        "store_ubuf_to_gm_1d_float",
        (whole, whole_type),
        ("%arg1", memref([8], "f32", "gm")),
        (kernel.constant(0, "i32"), "i32"),
    )
    program = Program.from_ir(kernel.text(), op="test.padding", ub_bytes=1024)
    source, out = np.arange(5, dtype=np.float32), np.zeros(8, np.float32)
    program.run([source, out], blocks=1)
    np.testing.assert_array_equal(out, [3.5, 3.5, 0, 1, 2, 3, 4, 3.5])


def test_atomic_stores_add_across_blocks() -> None:
    kernel = Written(memref([8], "f32", "gm"))
    ones = kernel.buffer(0, (8,), "f32")
    kernel.call("broadcast_scalar_float_to_1d", (kernel.constant(1.5, "f32"), "f32"), ones)
    kernel.op('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()')
    kernel.call(
        "store_ubuf_to_gm_1d_float",
        ones,
        ("%arg0", memref([8], "f32", "gm")),
        (kernel.constant(1, "i32"), "i32"),
    )
    program = Program.from_ir(kernel.text(), op="test.atomic", ub_bytes=1024)
    out = np.zeros(8, np.float32)
    program.run([out], blocks=6, checked=True)
    np.testing.assert_array_equal(out, np.full(8, 9, np.float32))


# ---- speed


def test_the_speed_that_was_asked_for() -> None:
    """(4001, 576) values in under 2 s fast and 10 s checked; translation in 0.1 s."""
    start = time.perf_counter()
    program = scaled_sum()
    assert time.perf_counter() - start < 0.1 + 5 * (compiled.cache_info().misses > 0)
    rows = 4001 * 9  # of 64: the same number of values
    case = inputs(rows)
    assert program.run(packed(case, rows), blocks=40).seconds < 2
    assert program.run(packed(case, rows), blocks=40, checked=True).seconds < 10


def test_out_of_bounds_is_a_fault_in_fast_runs_too() -> None:
    a, b, out = inputs(100)
    with pytest.raises(EmulatorFault, match=r"test\.scaled_sum: block 0: out of bounds.*argument 5"):
        scaled_sum().run(packed((a, b, out[:90]), 100), blocks=1)
