"""Rounding of casts, which vendor bodies leave to one instruction: against torch, and exact neighbours."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from monotile.targets.npuir.emulator import scalars
from monotile.targets.npuir.emulator.library import bf16_to_f32, round_to_bf16, round_to_float

EDGES = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    3.4028235e38,
    -3.4028235e38,
    1e-45,
    65504,
    65519.996,
    65520,
    2**-24,
    2**-25,
]


def samples(count: int = 20000) -> np.ndarray:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, count, dtype=np.uint32)
    halfway = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # ties for bf16
    halves = rng.standard_normal(count).astype(np.float16).astype(np.float32)
    between = (
        halves + np.nextafter(halves.astype(np.float16), np.float16(9)).astype(np.float32)
    ) / 2  # ties for f16
    values = np.concatenate(
        [bits.view(np.float32), halfway.view(np.float32), between, np.array(EDGES, np.float32)]
    )
    return values[~np.isnan(values)]


def test_nearest_even_is_torchs() -> None:
    values = samples()
    ours = round_to_bf16(values, 0)
    theirs = torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(ours, theirs)
    with np.errstate(over="ignore"):
        halves = round_to_float(values, np.float16, 0)
    np.testing.assert_array_equal(
        halves.view(np.uint16), torch.tensor(values).half().view(torch.int16).numpy().view(np.uint16)
    )


def test_nan_becomes_a_quiet_nan() -> None:
    assert round_to_bf16(np.array([np.nan], np.float32), 0)[0] == 0x7FC0 == scalars.to_bf16(float("nan"))


@pytest.mark.parametrize("mode", [1, 2, 3, 4])
@pytest.mark.parametrize("target", ["bf16", "f16", "f32"])
def test_directed_modes_take_the_right_neighbour(target: str, mode: int) -> None:
    """mode 1: nearest, ties away from zero; 2: down; 3: up; 4: towards zero."""
    if target == "f32":
        exact_values = np.random.default_rng(1).integers(-(2**31), 2**31, 3000).astype(np.int32)
        rounded = round_to_float(exact_values, np.float32, mode).astype(np.float64)
        below = np.nextafter(rounded.astype(np.float32), np.float32(-np.inf)).astype(np.float64)
        above = np.nextafter(rounded.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    else:
        limit = 3e38 if target == "bf16" else 65000
        exact_values = samples(3000)
        exact_values = exact_values[np.abs(exact_values) < limit]
        if target == "bf16":
            bits = round_to_bf16(exact_values, mode)
            rounded = bf16_to_f32(bits).astype(np.float64)
            away, toward = (
                bf16_to_f32(bits + np.uint16(1)).astype(np.float64),
                bf16_to_f32(bits - np.uint16(1)).astype(np.float64),
            )
            zero = (bits & 0x7FFF) == 0
            negative = np.signbit(rounded)
            below = np.where(negative, away, np.where(zero, -away, toward))
            above = np.where(negative, np.where(zero, -away, toward), away)
        else:
            halves = round_to_float(exact_values, np.float16, mode)
            rounded = halves.astype(np.float64)
            below = np.nextafter(halves, np.float16(-np.inf)).astype(np.float64)
            above = np.nextafter(halves, np.float16(np.inf)).astype(np.float64)
    exact = exact_values.astype(np.float64)
    if mode in (2, 4):
        positive = exact >= 0 if mode == 4 else np.ones(exact.shape, bool)
        assert ((rounded <= exact) & (above > exact))[positive].all()
    if mode in (3, 4):
        negative_side = exact < 0 if mode == 4 else np.ones(exact.shape, bool)
        assert ((rounded >= exact) & (below < exact))[negative_side].all()
    if mode == 1:
        error = np.abs(rounded - exact)
        nearest = np.minimum(np.abs(below - exact), np.abs(above - exact))
        assert (error <= nearest).all()
        tie = error == nearest
        assert (np.abs(rounded) > np.abs(exact))[tie].all() and (target == "f32" or tie.any())


def test_scalar_arithmetic_rounds_once() -> None:
    rng = np.random.default_rng(2)
    for a, b in rng.standard_normal((500, 2)).astype(np.float32).tolist():
        exact = Fraction(a) * Fraction(b)
        nearest = scalars.to_f32(a * b)
        for other in (
            np.nextafter(np.float32(nearest), np.float32(9)),
            np.nextafter(np.float32(nearest), np.float32(-9)),
        ):
            assert abs(Fraction(nearest) - exact) <= abs(Fraction(float(other)) - exact)
    assert scalars.to_f16(65520.0) == float("inf") and scalars.to_f32(-1e39) == float("-inf")
    assert scalars.float_to_int(3e9, 32) == 2**31 - 1 and scalars.float_to_int(float("nan"), 32) == 0
