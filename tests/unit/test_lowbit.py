"""compat.lowbit: its expressions evaluated with NumPy, against torch's conversions and the formats' own tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from monotile.compat import language as T
from monotile.compat import lowbit
from monotile.compat.capability import capabilities

INTEGER_CODE: frozenset[str] = frozenset()
E2M1_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)


# ---------------------------------------------------------------------- expressions over arrays
def evaluate(expr: Any, variable: Any, value: np.ndarray, nan_wins: bool = False) -> np.ndarray:
    """A TIR expression of one variable with NumPy's arithmetic; int32 wraps, shifts of int32 are arithmetic.

    Units differ in what max and min make of a NaN: with ``nan_wins`` it is NaN, else the other operand.
    """
    two = TWO | ({"Max": np.maximum, "Min": np.minimum} if nan_wins else {"Max": np.fmax, "Min": np.fmin})
    known: dict[Any, np.ndarray] = {}

    def walk(node: Any) -> np.ndarray:
        if node not in known:
            known[node] = step(node)
        return known[node]

    def step(node: Any) -> np.ndarray:
        name = type(node).__name__
        if name == "Var":
            assert node.same_as(variable)
            return value
        if name in ("IntImm", "FloatImm"):
            return np.array(node.value).astype(str(node.dtype))
        if name == "Cast":
            return walk(node.value).astype(str(node.dtype))
        if name in two:
            return np.asarray(two[name](walk(node.a), walk(node.b)))
        assert name == "Call", name
        call = node.op.name.split(".")[-1]
        arguments = [walk(a) for a in node.args]
        if call == "reinterpret":
            return arguments[0].view(str(node.dtype))
        if call == "if_then_else":
            return np.where(*arguments)
        return np.asarray(CALLS[call](*arguments))

    with np.errstate(all="ignore"):
        return walk(expr)


TWO: dict[str, Any] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
                       "EQ": np.equal, "NE": np.not_equal, "LT": np.less}
CALLS: dict[str, Any] = {"fabs": np.abs, "isnan": np.isnan, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
                         "shift_left": np.left_shift, "shift_right": np.right_shift}


def run(macro: Any, value: np.ndarray, dtype: str = "float32", nan_wins: bool = False) -> np.ndarray:
    from tilelang import tvm

    variable = tvm.tirx.Var("x", dtype)
    with capabilities(INTEGER_CODE):
        return evaluate(macro(variable), variable, value, nan_wins)


# ---------------------------------------------------------------------- inputs
def neighbours(values: np.ndarray) -> np.ndarray:
    """Each float32 with the two before and the two after it, of both signs."""
    bits = np.concatenate([values, -values]).astype(np.float32).view(np.int32)
    near = np.concatenate([bits + d for d in (-2, -1, 0, 1, 2)])
    return near.view(np.float32)


def hard_cases(finite: np.ndarray) -> np.ndarray:
    """Values of a format, the middles between them, what lies around both, and the extremes of float32."""
    middles = (finite[1:] + finite[:-1]) / 2
    past = np.array([finite[-1] + (finite[-1] - finite[-2]) * f for f in (0.5, 1.0, 1.5, 64)], np.float32)
    extremes = np.array([0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, np.inf, -np.inf],
                        np.float32)
    nan = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1, -0x400000], np.int64).astype(np.int32).view(np.float32)
    return np.concatenate([neighbours(np.concatenate([finite, middles, past]).astype(np.float32)), extremes, nan])


def sweep() -> np.ndarray:
    """Every mantissa of a few binades (2**21 values of each), and bit patterns from the whole of float32."""
    binades = [np.arange(2**23, dtype=np.int32)[::4] + (e << 23) for e in (116, 117, 120, 121, 126, 135)]
    some = np.random.default_rng(7).integers(-2**31, 2**31, 2**21).astype(np.int32)
    return np.concatenate([*binades, some]).view(np.float32)


def e4m3_table() -> np.ndarray:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()


def e4m3_by_torch(x: np.ndarray) -> np.ndarray:
    codes = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return np.where(np.isnan(x), 0x7F, codes)


def e2m1_by_distance(x: np.ndarray) -> np.ndarray:
    """The nearest code; of two equally near ones the even. In float64, where all distances are exact."""
    with np.errstate(invalid="ignore"):   # a signalling NaN
        size = np.minimum(np.abs(x.astype(np.float64)), 6.0)
    distance = np.abs(size[:, None] - E2M1_VALUES.astype(np.float64))
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])   # argmin takes the first: even codes first
    code = order[np.argmin(distance[:, order], axis=1)] | np.where(np.signbit(x), 8, 0)
    return np.where(np.isnan(x), 7, code)


def e5m6_table() -> np.ndarray:
    """The values of the 4096 codes: halves whose low 4 bits are zero."""
    return (np.arange(4096, dtype=np.uint16) << 4).view(np.float16).astype(np.float32)


def e5m6_by_rule(x: np.ndarray) -> np.ndarray:
    """The half below in magnitude, cut to 12 bits; one more where last bit and float32's low 17 bits exceed 0x10000."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        half = np.abs(x).astype(np.float16)
        too_large = half.astype(np.float64) > np.abs(x.astype(np.float64))
    code = (half.view(np.uint16).astype(np.int64) - too_large) >> 4
    code += (code & 1) + (x.view(np.int32) & 0x1FFFF) > 0x10000
    return np.where(np.isnan(x), 0x7FF, code | np.where(np.signbit(x), 0x800, 0))


# ---------------------------------------------------------------------- tests
@pytest.mark.parametrize("nan_wins", [False, True])
@pytest.mark.parametrize("make", [lambda: hard_cases(e4m3_table()[:0x7F]), sweep], ids=["hard", "sweep"])
def test_e4m3_from_f32(make: Any, nan_wins: bool) -> None:
    x = make()
    got = run(lowbit.e4m3_from_f32_bits, x, nan_wins=nan_wins)
    assert got.min() >= -128 and got.max() <= 127
    got = got & 0xFF
    wrong = np.flatnonzero(got != e4m3_by_torch(x))
    assert wrong.size == 0, [(float(x[i]), int(got[i])) for i in wrong[:5]]


def test_e4m3_from_f32_as_a_kernel_stores_it() -> None:
    from tilelang import tvm

    variable = tvm.tirx.Var("x", "float32")
    with capabilities(INTEGER_CODE):
        expr = lowbit.e4m3_from_f32(variable)
    assert str(expr.dtype) == "float8_e4m3fn"
    assert expr.op.name.endswith("reinterpret")
    x = hard_cases(e4m3_table()[:0x7F])
    np.testing.assert_array_equal(evaluate(expr.args[0], variable, x).view(np.uint8), e4m3_by_torch(x))


def test_e4m3_to_f32() -> None:
    codes = np.arange(256, dtype=np.int32)
    got = run(lowbit.e4m3_bits_to_f32, codes, "int32")
    want = e4m3_table()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = ~np.isnan(want)
    np.testing.assert_array_equal(got[finite].view(np.int32), want[finite].view(np.int32))


def test_e4m3_round_trip() -> None:
    codes = np.arange(256, dtype=np.int32)
    back = run(lowbit.e4m3_from_f32_bits, run(lowbit.e4m3_bits_to_f32, codes, "int32")) & 0xFF
    np.testing.assert_array_equal(back, np.where(codes == 0xFF, 0x7F, codes))   # one NaN


@pytest.mark.parametrize("nan_wins", [False, True])
@pytest.mark.parametrize("make", [lambda: hard_cases(E2M1_VALUES), lambda: sweep()[::8]], ids=["hard", "sweep"])
def test_e2m1_from_f32(make: Any, nan_wins: bool) -> None:
    x = make()
    got = run(lowbit.e2m1_from_f32, x, nan_wins=nan_wins)
    assert got.min() >= -8 and got.max() <= 7
    got = got & 0xF
    wrong = np.flatnonzero(got != e2m1_by_distance(x))
    assert wrong.size == 0, [(float(x[i]), int(got[i])) for i in wrong[:5]]


def test_e2m1_to_f32() -> None:
    got = run(lowbit.e2m1_to_f32, np.arange(16, dtype=np.int32), "int32")
    want = np.concatenate([E2M1_VALUES, -E2M1_VALUES])
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


def test_pack_pair() -> None:
    codes = np.arange(-8, 8, dtype=np.int32)
    for high in codes.tolist():
        got = run(lambda low, high=high: lowbit.pack_pair(low, T.int32(high)), codes, "int32")
        np.testing.assert_array_equal(got.view(np.uint8), (codes & 15) | ((high & 15) << 4))


@pytest.mark.parametrize("nan_wins", [False, True])
@pytest.mark.parametrize("make", [lambda: hard_cases(e5m6_table()[:0x7C0]), sweep, lambda: small_numbers()],
                         ids=["hard", "sweep", "small"])
def test_e5m6_from_f32(make: Any, nan_wins: bool) -> None:
    x = make()
    got = run(lowbit.e5m6_from_f32, x, nan_wins=nan_wins)
    assert got.dtype == np.int32 and got.min() >= 0 and got.max() <= 0xFFF
    wrong = np.flatnonzero(got != e5m6_by_rule(x))
    assert wrong.size == 0, [(float(x[i]), hex(got[i])) for i in wrong[:5]]


def small_numbers() -> np.ndarray:
    """Every exponent at and below the halves' subnormals, with low 17 bits around the rule's threshold."""
    bits = (np.arange(116)[:, None, None] << 23) + (np.arange(64)[:, None] << 17) + np.array(
        [0, 1, 0xFFFF, 0x10000, 0x10001, 0x1FFFF])
    return np.concatenate([bits, bits - 2**31]).astype(np.int32).ravel().view(np.float32)


def test_e5m6_rule_in_numbers() -> None:
    """Written down: nearest even among normal numbers, and what else the rule gives."""
    table = e5m6_table()

    def rounded(*values: float) -> list[float]:
        return table[run(lowbit.e5m6_from_f32, np.array(values, np.float32))].tolist()

    assert rounded(1.0, 1 + 1 / 128, 1 + 2 / 128, 1 + 3 / 128, -1 - 3 / 128) == [1, 1, 1 + 1 / 64, 1 + 2 / 64,
                                                                                 -1 - 2 / 64]
    assert rounded(65024.0, 65279.996, 65280.0, 65536.0, 65536 * 1.0078125, 1e6) == [
        65024, 65024, np.inf, 65024, np.inf, 65024]
    assert rounded(2.0**-20, 1.5 * 2.0**-20, 1.984375 * 2.0**-20, 1.9921875 * 2.0**-20) == [
        2.0**-20, 2.0**-20, 2.0**-20, 2 * 2.0**-20]
    assert rounded(2.0**-100, 1.9999 * 2.0**-100, 2.0**-140) == [0, 2.0**-20, 0]
    assert rounded(np.inf, -np.inf) == [np.inf, -np.inf]
    zeros = run(lowbit.e5m6_from_f32, np.array([0.0, -0.0, np.nan, -np.nan], np.float32))
    assert zeros.tolist() == [0, 0x800, 0x7FF, 0x7FF]


def test_e5m6_to_f32() -> None:
    """Every code, whatever lies above its 12 bits."""
    codes, want = np.arange(4096, dtype=np.int32), e5m6_table()
    for above in (0, 0x1000, -0x1000, 0x5A5A5000):
        got = run(lowbit.e5m6_to_f32, codes + above, "int32")
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        finite = ~np.isnan(want)
        np.testing.assert_array_equal(got[finite].view(np.int32), want[finite].view(np.int32))


def test_e5m6_round_trip() -> None:
    codes = np.arange(4096, dtype=np.int32)
    back = run(lowbit.e5m6_from_f32, run(lowbit.e5m6_to_f32, codes, "int32"))
    np.testing.assert_array_equal(back, np.where((codes & 0x7FF) > 0x7C0, 0x7FF, codes))   # one NaN


@pytest.mark.parametrize("place", range(8))
def test_e5m6_words(place: int) -> None:
    """Every code in every place, between zeros and between its complements: the 96 bits written as one number."""
    codes = np.arange(4096, dtype=np.int32)
    for ones in (0, 0xFFF):
        others = codes ^ 0xFFF if ones else 0 * codes
        bits = [sum((code if k == place else other) << (12 * (7 - k)) for k in range(8))
                for code, other in zip(codes.tolist(), others.tolist())]
        want = np.array([[n >> 64 & 0xFFFFFFFF, n >> 32 & 0xFFFFFFFF, n & 0xFFFFFFFF] for n in bits])
        want = want.astype(np.uint32).view(np.int32)
        for word in range(3):
            def packed(code: Any, word: int = word, ones: int = ones) -> Any:
                other = ones - code if ones else T.int32(0)
                return lowbit.pack_eight([code if k == place else other for k in range(8)])[word]

            got = run(packed, codes, "int32")
            np.testing.assert_array_equal(np.broadcast_to(got, codes.shape), want[:, word])
        for k in range(8):
            got = unpacked(want, k)
            np.testing.assert_array_equal(got & 0xFFF, codes if k == place else others)


def unpacked(words: np.ndarray, place: int) -> np.ndarray:
    """One code of three columns of words: of what varies, the evaluator takes one at a time."""
    from tilelang import tvm

    variables = [tvm.tirx.Var(name, "int32") for name in "abc"]
    expr = lowbit.unpack_eight(*variables)[place]
    used = [tvm.tirx.stmt_functor.substitute(expr, {v: T.int32(0) for v in variables if v is not kept})
            for kept in variables]
    return np.bitwise_or.reduce([np.broadcast_to(evaluate(e, v, words[:, i]), len(words))
                                 for i, (e, v) in enumerate(zip(used, variables))])


@pytest.mark.parametrize("largest", [448.0, 6.0, 65024.0])
def test_power_of_two_above(largest: float) -> None:
    """From the scale's own bits, over the exponent range: exact powers stay, their upper neighbours go up."""
    exponents = np.arange(-126, 120)
    amax = np.float64(largest) * 2.0**exponents
    amax = amax[amax < np.finfo(np.float32).max].astype(np.float32)
    scale = neighbours(amax)
    scale = scale[scale > 0] / np.float32(largest)
    scale = scale[scale >= np.float32(2.0**-126)]
    exponent = run(lowbit.power_of_two_above, scale)
    mantissa, power = np.frexp(scale.astype(np.float64))
    want = np.where(mantissa == 0.5, power - 1, power) + 127
    np.testing.assert_array_equal(exponent, want)
    np.testing.assert_array_equal(run(lowbit.power_of_two, exponent, "int32"), 2.0 ** (want - 127.0))


def test_native_cast_where_the_chip_has_it() -> None:
    from tilelang import tvm

    x, code = tvm.tirx.Var("x", "float32"), tvm.tirx.Var("c", "float8_e4m3fn")
    with capabilities(frozenset({"e4m3"})):   # a conversion that turns NaN to 0
        assert "isnan" in str(lowbit.e4m3_from_f32(x)) and "isnan" in str(lowbit.e4m3_pair_from_f32(x, x))
    with capabilities(frozenset({"e4m3", "e4m3_nan"})):
        there, back = lowbit.e4m3_from_f32(x), lowbit.e4m3_to_f32(code)
    assert type(there).__name__ == type(back).__name__ == "Cast"
    assert (str(there.dtype), str(back.dtype)) == ("float8_e4m3fn", "float32")
