"""Break final IR in the ways that kernels and compilers do: the checked emulator says so, the unbroken IR
passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from modules_on_disk import UB_BYTES, Written, compiled, memref

from monotile.targets.npuir import abi
from monotile.targets.npuir.emulator import EmulatorFault, Program, Report

ROWS, BLOCKS = 16 * 11 + 5, 3  # four turns a block, the last one short


def run(ir: str, rows: int = ROWS, blocks: int = BLOCKS, ub_bytes: int = UB_BYTES) -> Report:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, rows, 64)).astype(np.float32)
    out = np.full((rows, 64), 7, np.float32)
    program = Program.from_ir(ir, op="test.scaled_sum", ub_bytes=ub_bytes)
    report = program.run(abi.pack([x.reshape(-1) for x in (a, b, out)], [rows]), blocks=blocks, checked=True)
    np.testing.assert_array_equal(out, (a + b) * np.float32(2))
    return report


def lines_with(ir: str, pattern: str) -> list[int]:
    return [k for k, line in enumerate(ir.splitlines()) if re.search(pattern, line)]


def without(ir: str, *numbers: int) -> str:
    return "\n".join(line for k, line in enumerate(ir.splitlines()) if k not in numbers) + "\n"


def replaced(ir: str, number: int, old: str, new: str) -> str:
    lines = ir.splitlines()
    assert old in lines[number], lines[number]
    lines[number] = lines[number].replace(old, new)
    return "\n".join(lines) + "\n"


def test_the_unbroken_kernel_passes() -> None:
    run(compiled("scaled_sum"))


WAITS = r"hivm\.hir\.wait_flag"
# One of MTE3 stands between stores to different places, which need no order; those of V separate dependent
# calls.
BARRIERS = r"hivm\.hir\.pipe_barrier.*PIPE_V>"


def pick_rows(ir: str) -> None:
    rng = np.random.default_rng(3)
    x, where = rng.standard_normal((50, 128)).astype(np.float16), rng.integers(-1, 50, 41).astype(np.int32)
    out = np.full((41, 128), 9, np.float16)
    program = Program.from_ir(ir, op="test.pick_rows", ub_bytes=UB_BYTES)
    program.run([x.reshape(-1), where, out.reshape(-1), 41], blocks=3, checked=True)


@pytest.mark.parametrize(("name", "execute", "least"), [("scaled_sum", run, 8), ("pick_rows", pick_rows, 4)])
def test_every_deleted_wait_is_caught(name: str, execute: Callable[[str], object], least: int) -> None:
    ir = compiled(name)
    execute(ir)
    waits = lines_with(ir, WAITS)
    assert len(waits) >= least
    for number in waits:
        with pytest.raises(EmulatorFault, match=r"race|left set"):
            execute(without(ir, number))


def test_a_deleted_pair_of_set_and_wait_is_a_race() -> None:
    """With its set gone too no flag is left over: only the order of accesses can show it."""
    ir = compiled("scaled_sum")
    lines = ir.splitlines()
    caught = 0
    for number in lines_with(ir, WAITS):
        flag = re.search(r"<\{.*?\}>", lines[number])
        assert flag
        sets = [k for k in lines_with(ir, r"hivm\.hir\.set_flag") if flag[0] in lines[k] and k < number]
        operands = re.search(r"\((%\w*)\)", lines[number])
        if not sets or operands or "set_pipe = #hivm.pipe<PIPE_MTE3>" in flag[0]:
            continue  # these are set a turn earlier, or before the loop
        with pytest.raises(EmulatorFault, match="race"):
            run(without(ir, number, sets[-1]))
        caught += 1
    assert caught >= 3


def test_every_deleted_barrier_is_a_race() -> None:
    ir = compiled("scaled_sum")
    barriers = lines_with(ir, BARRIERS)
    assert barriers
    for number in barriers:
        with pytest.raises(EmulatorFault, match=r"race: .* and no flag or barrier orders them at UB byte"):
            run(without(ir, number))


def test_a_dropped_tail_fill_is_caught() -> None:
    """The tail is the last turn of its block: the turns before it have written the same UB, and are not to
    hide it.
    """
    ir = compiled("scaled_sum")
    for number in lines_with(ir, r'"func\.call".*broadcast_scalar'):
        with pytest.raises(
            EmulatorFault, match=r"vadd_1d_float reads 704 of 1024 elements of UB that nobody wrote"
        ) as caught:
            run(without(ir, number))
        assert caught.value.block == 2 and "vadd_1d_float" in caught.value.instruction
        assert caught.value.address.startswith("UB byte")


def test_a_misaligned_address_is_caught() -> None:
    ir = compiled("scaled_sum")
    (number,) = lines_with(ir, r"arith\.constant.*value = 12288 : i64")
    with pytest.raises(EmulatorFault, match="an address that is no multiple of 32 bytes at UB byte 12292"):
        run(replaced(ir, number, "12288", "12292"))


def test_an_address_planned_twice_is_caught() -> None:
    """Two live tiles at one place: what one writes, the other reads."""
    ir = compiled("scaled_sum")
    (number,) = lines_with(ir, r"arith\.constant.*value = 12288 : i64")
    with pytest.raises((EmulatorFault, AssertionError), match=r"race|not equal"):
        run(replaced(ir, number, "12288", "8192"))


def test_an_oversized_tail_is_caught() -> None:
    """The tail takes all of its 16 rows: past the end of the tensors."""
    ir = compiled("scaled_sum")
    (rows,) = lines_with(ir, r"^#map\d* = affine_map<.*\(16, s0 - s1 \* 16\)>")
    with pytest.raises(
        EmulatorFault, match=r"out of bounds: \(1024,\) elements of f32 end at byte .* of .* at argument 3"
    ):
        run(replaced(ir, rows, "(16, s0 - s1 * 16)", "(16, 16)"))


def test_an_oversized_store_is_caught() -> None:
    kernel = Written(memref(["?"], "f32", "gm"))
    tile = kernel.buffer(0, (16,), "f32")
    kernel.call("broadcast_scalar_float_to_1d", (kernel.constant(1.0, "f32"), "f32"), tile)
    kernel.lines.append(
        f'%g = "memref.reinterpret_cast"(%arg0) <{{static_offsets = array<i64: 4>, '
        "static_sizes = array<i64: 16>, "
        f"static_strides = array<i64: 1>}}> : ({memref(['?'], 'f32', 'gm')}) -> {memref([16], 'f32', 'gm')}"
    )
    kernel.call(
        "store_ubuf_to_gm_1d_float",
        tile,
        ("%g", memref([16], "f32", "gm")),
        (kernel.constant(0, "i32"), "i32"),
    )
    program = Program.from_ir(kernel.text(), op="test.store", ub_bytes=1024)
    program.run([np.zeros(20, np.float32)], blocks=1)
    for checked in (False, True):
        with pytest.raises(EmulatorFault, match="end at byte 79 of 76 at argument 0 byte 16") as caught:
            program.run([np.zeros(19, np.float32)], blocks=1, checked=checked)
        assert "store_ubuf_to_gm_1d_float" in caught.value.instruction


def test_ub_of_a_smaller_chip_is_respected() -> None:
    with pytest.raises(EmulatorFault, match=r"out of bounds: .* end at byte 16383 of 16000"):
        run(compiled("scaled_sum"), ub_bytes=16000)


def test_two_blocks_in_one_place_are_caught() -> None:
    """Every block starts at tile 0: all compute the same values, so that the result alone looks right."""
    ir = compiled("scaled_sum")
    (loop,) = lines_with(ir, r'"scf\.for"')
    operands = re.search(r"\((%\w+), (%\w+), (%\w+)\)", ir.splitlines()[loop])
    assert operands
    zero = re.search(r'(%\w+) = "arith\.constant"\(\) <\{value = 0 : index\}>', ir)
    one = re.search(r'(%\w+) = "arith\.constant"\(\) <\{value = 1 : index\}>', ir)
    assert zero
    step = one[1] if one else operands[3]
    changed = replaced(
        ir, loop, f"({operands[1]}, {operands[2]}, {operands[3]})", f"({zero[1]}, {operands[2]}, {step})"
    )
    with pytest.raises(
        EmulatorFault, match="two blocks write one place: block 1 and block 0 at argument 5 byte"
    ):
        run(changed)


# ---- faults that need no compiler


def store(kernel: Written, source: tuple[str, str], argument: int, count: int, element: str) -> None:
    kernel.op('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()')
    kernel.call(
        f"store_ubuf_to_gm_1d_{ {'f32': 'float', 'i8': 'int8_t', 'i32': 'int32_t'}[element] }",
        source,
        (f"%arg{argument}", memref([count], element, "gm")),
        (kernel.constant(0, "i32"), "i32"),
    )


@pytest.mark.parametrize("checked", [False, True])
def test_a_cast_that_overwrites_its_neighbour_is_caught(checked: bool) -> None:
    """The vendor's truncating cast to 8 bits writes pieces of 1024 bytes, whatever its result's size."""
    kernel = Written(memref([32], "f32", "gm"))
    source = kernel.buffer(4096, (64,), "i32")
    result = kernel.buffer(0, (64,), "i8")
    neighbour = kernel.buffer(512, (32,), "f32")
    scratch = kernel.buffer(8192, (8192,), "i32")
    kernel.call("broadcast_scalar_int32_t_to_1d", (kernel.constant(5, "i32"), "i32"), source)
    kernel.call("broadcast_scalar_float_to_1d", (kernel.constant(1.5, "f32"), "f32"), neighbour)
    kernel.op('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()')
    kernel.call(
        "vcast_int32_t_to_int8_t_1d_with_overflow",
        source,
        result,
        scratch,
        (kernel.constant(0, "i32"), "i32"),
    )
    store(kernel, neighbour, 0, 32, "f32")
    program = Program.from_ir(kernel.text(), op="test.cast", ub_bytes=UB_BYTES)
    out = np.zeros(32, np.float32)
    if checked:
        with pytest.raises(
            EmulatorFault, match="store_ubuf_to_gm_1d_float reads 32 of 32 elements of UB that nobody wrote"
        ):
            program.run([out], blocks=1, checked=True)
    else:
        program.run([out], blocks=1)
        assert np.isnan(out).all()


def test_scratch_is_not_data() -> None:
    kernel = Written(memref([64], "f32", "gm"))
    source, scratch = kernel.buffer(0, (4, 64), "f32"), kernel.buffer(4096, (64,), "f32")
    result = kernel.buffer(8192, (4, 1), "f32", (8, 1))
    kernel.call("broadcast_scalar_float_to_2d", (kernel.constant(1.5, "f32"), "f32"), source)
    kernel.call("broadcast_scalar_float_to_1d", (kernel.constant(1.5, "f32"), "f32"), scratch)
    kernel.op('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()')
    kernel.call("enablevc_reduce_sum_ar_float", source, result, scratch, (kernel.constant(0.0, "f32"), "f32"))
    store(kernel, scratch, 0, 64, "f32")
    program = Program.from_ir(kernel.text(), op="test.scratch", ub_bytes=UB_BYTES)
    with pytest.raises(EmulatorFault, match="reads 64 of 64 elements of UB that nobody wrote"):
        program.run([np.zeros(64, np.float32)], blocks=1, checked=True)


@pytest.mark.parametrize(
    ("ub_stride", "gm_stride", "fault"),
    [(1, 1, ""), (8, 1, ""), (8, 5, ""), (1, 5, "one a block"), (4, 5, "one a block")],
)
def test_a_strided_dma_needs_a_block_an_element(ub_stride: int, gm_stride: int, fault: str) -> None:
    memory = memref([6], "f32", "gm", [gm_stride])
    kernel = Written(memref(["?"], "f32", "gm"))
    base = "%arg0"
    kernel.lines.append(
        f'%g = "memref.reinterpret_cast"({base}) <{{static_offsets = array<i64: 0>, '
        "static_sizes = array<i64: 6>, "
        f"static_strides = array<i64: {gm_stride}>}}> : ({memref(['?'], 'f32', 'gm')}) -> {memory}"
    )
    tile = kernel.buffer(0, (6,), "f32", (ub_stride,))
    zeros = [
        (kernel.constant(0, "i32"), "i32"),
        (kernel.constant(0.0, "f32"), "f32"),
        (kernel.constant(0, "index"), "index"),
    ]
    kernel.call("load_gm_to_ubuf_1d_float", ("%g", memory), tile, *zeros)
    program = Program.from_ir(kernel.text(), op="test.stride", ub_bytes=1024)
    if not fault:
        program.run([np.zeros(64, np.float32)], blocks=1, checked=True)
        return
    with pytest.raises(EmulatorFault, match=fault):
        program.run([np.zeros(64, np.float32)], blocks=1, checked=True)


def in_place(order: str) -> str:
    """Each block adds 1 to its 8 values in place; `order` is what stands between the store and a second
    load.
    """
    kernel = Written(memref(["?"], "f32", "gm"))
    tile = kernel.buffer(0, (8,), "f32")
    again = kernel.buffer(64, (8,), "f32")
    block = kernel.op('"hivm.hir.get_block_idx"() : () -> i64', "r")
    index = kernel.op(f'"arith.index_cast"({block}) : (i64) -> index', "r")
    eight = kernel.constant(8, "index")
    start = kernel.op(f'"arith.muli"({index}, {eight}) : (index, index) -> index', "r")
    memory = "memref<8xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>"
    kernel.lines.append(
        f'%g = "memref.reinterpret_cast"(%arg0, {start}) <{{'
        "static_offsets = array<i64: -9223372036854775808>, "
        "static_sizes = array<i64: 8>, static_strides = array<i64: 1>}> : "
        f"({memref(['?'], 'f32', 'gm')}, index) -> {memory}"
    )
    nothing = kernel.buffer(128, (0,), "f32")
    zeros = [
        (kernel.constant(0, "i32"), "i32"),
        (kernel.constant(0.0, "f32"), "f32"),
        (kernel.constant(0, "index"), "index"),
    ]
    one = (kernel.constant(1.0, "f32"), "f32")
    kernel.call("load_gm_to_ubuf_1d_float", ("%g", memory), tile, *zeros)
    everything = '"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()'
    kernel.op(everything)
    kernel.call("vadds_vs_1d_float", tile, one, tile, nothing)
    kernel.op(everything)
    kernel.call("store_ubuf_to_gm_1d_float", tile, ("%g", memory), zeros[0])
    if order:
        kernel.op(order)
    kernel.call("load_gm_to_ubuf_1d_float", ("%g", memory), again, *zeros)
    return kernel.text()


def test_global_memory_is_ordered_by_flags_too() -> None:
    values = np.arange(32, dtype=np.float32)
    everything = '"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()'
    Program.from_ir(in_place(everything), op="test.place", ub_bytes=1024).run(
        [values], blocks=4, checked=True
    )
    np.testing.assert_array_equal(values, np.arange(32) + 1)
    with pytest.raises(
        EmulatorFault, match=r"race: load_gm_to_ubuf_1d_float .*reads before it is written .*argument 0"
    ):
        Program.from_ir(in_place(""), op="test.place", ub_bytes=1024).run([values], blocks=4, checked=True)


def test_a_block_that_reads_what_another_writes_is_caught() -> None:
    broken = in_place('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()').replace(
        "value = 8 : index", "value = 4 : index"
    )
    with pytest.raises(
        EmulatorFault, match="a block reads what another writes: block 1 and block 0 at argument 0 byte 16"
    ):
        Program.from_ir(broken, op="test.place", ub_bytes=1024).run(
            [np.zeros(64, np.float32)], blocks=4, checked=True
        )


def test_a_wait_for_a_flag_that_nobody_sets_is_caught() -> None:
    kernel = Written()
    kernel.op(
        '"hivm.hir.wait_flag"() <{set_pipe = #hivm.pipe<PIPE_V>, static_event_id = #hivm.event<EVENT_ID3>, '
        "wait_pipe = #hivm.pipe<PIPE_MTE3>}> : () -> ()"
    )
    with pytest.raises(EmulatorFault, match="a flag that nobody sets at V to MTE3, event 3"):
        Program.from_ir(kernel.text(), op="test.flag", ub_bytes=1024).run([], blocks=1, checked=True)


def test_what_is_written_before_the_persistent_loop_lasts() -> None:
    """A table filled once and read in every turn is legal; a tile of the turn before is not."""
    for table_outside in (True, False):
        kernel = Written("index", memref([8], "f32", "gm"))
        table = kernel.buffer(0, (8,), "f32")
        block = kernel.op('"hivm.hir.get_block_idx"() : () -> i64', "r")
        first = kernel.op(f'"arith.index_cast"({block}) : (i64) -> index', "r")
        count = kernel.op('"hivm.hir.get_block_num"() : () -> i64', "r")
        step = kernel.op(f'"arith.index_cast"({count}) : (i64) -> index', "r")
        zero, none = kernel.constant(0, "index"), kernel.constant(0, "i32")
        value = kernel.constant(2.5, "f32")
        if table_outside:
            kernel.call("broadcast_scalar_float_to_1d", (value, "f32"), table)
        kernel.lines += [f'"scf.for"({first}, %arg0, {step}) ({{', "^bb0(%i: index):"]
        if not table_outside:  # only the first turn writes it
            test = kernel.op(
                f'"arith.cmpi"(%i, {zero}) <{{predicate = 0 : i64}}> : (index, index) -> i1', "r"
            )
            kernel.lines += [f'"scf.if"({test}) ({{']
            kernel.call("broadcast_scalar_float_to_1d", (value, "f32"), table)
            kernel.lines += ['"scf.yield"() : () -> ()', "}, {", "}) : (i1) -> ()"]
        kernel.op('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()')
        kernel.call("store_ubuf_to_gm_1d_float", table, ("%arg1", memref([8], "f32", "gm")), (none, "i32"))
        kernel.lines += ['"scf.yield"() : () -> ()', "}) : (index, index, index) -> ()"]
        program = Program.from_ir(kernel.text(), op="test.table", ub_bytes=1024)
        out = np.zeros(8, np.float32)
        if table_outside:
            program.run([3, out], blocks=1, checked=True)
            np.testing.assert_array_equal(out, np.full(8, 2.5, np.float32))
        else:
            with pytest.raises(EmulatorFault, match="nobody wrote"):
                program.run([3, out], blocks=1, checked=True)


def test_gather_beyond_its_source_is_caught() -> None:
    kernel = Written(memref([8], "i32", "gm"))
    source, indices = kernel.buffer(0, (16,), "f32"), kernel.buffer(64, (8,), "i32")
    result, scratch = kernel.buffer(128, (8,), "f32"), kernel.buffer(192, (8,), "i32")
    zeros = [
        (kernel.constant(0, "i32"), "i32"),
        (kernel.constant(0, "i32"), "i32"),
        (kernel.constant(0, "index"), "index"),
    ]
    kernel.call("broadcast_scalar_float_to_1d", (kernel.constant(1.0, "f32"), "f32"), source)
    kernel.call("load_gm_to_ubuf_1d_int32_t", ("%arg0", memref([8], "i32", "gm")), indices, *zeros)
    kernel.call("gather_1d_float", source, indices, result, scratch)
    program = Program.from_ir(kernel.text(), op="test.gather", ub_bytes=1024)
    program.run([np.arange(8, dtype=np.int32)], blocks=1)
    with pytest.raises(EmulatorFault, match="gather index 16 outside of 16 elements"):
        program.run([np.arange(9, 17, dtype=np.int32)], blocks=1)
