"""Two tensors under a bound."""

import pytest
import torch

from monotile.parity import tolerances
from monotile.parity.difference import Miss, difference
from monotile.parity.tolerances import Bound

BITS, NUMBERS, CLOSE = Bound("", bits=True), Bound(""), Bound("", relative=1e-3, absolute=1e-6)
NAN, INF = float("nan"), float("inf")


def test_misses_have_places_and_both_values() -> None:
    want = torch.arange(12.0).reshape(3, 4)
    got = want.clone()
    got[1, 2] += 1
    found = difference(got, want, BITS)
    assert (found.missed, found.elements, found.worst_ulp) == (1, 12, 2**21) and not found.holds
    assert found.first == (Miss((1, 2), "7 (0x40e00000)", "6 (0x40c00000)"),)


def test_numbers_and_bits() -> None:
    a, b = torch.tensor([0.0, NAN]), torch.tensor([-0.0, -NAN])
    b[1:] = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert difference(a, b, NUMBERS).holds and difference(a, b, BITS).missed == 2
    assert difference(a, torch.tensor([0.0, 1.0]), NUMBERS).missed == 1


def test_bounds() -> None:
    want = torch.tensor([1.0, 1000.0, 0.0, INF, -INF, NAN])
    assert difference(torch.tensor([1.0009, 1000.9, 9e-7, INF, -INF, NAN]), want, CLOSE).holds
    assert difference(torch.tensor([1.0011, 1001.1, 2e-6, -INF, 1.0, 0.0]), want, CLOSE).missed == 6
    assert difference(torch.tensor([NAN, INF, NAN, INF, -INF, NAN]), want, CLOSE).missed == 3


def test_ulp_of_every_format() -> None:
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32):
        one = torch.ones(1).to(dtype)
        next_ = (one.view(torch.uint8 if dtype.itemsize == 1 else torch.int16 if dtype.itemsize == 2 else torch.int32)
                 + 1).view(dtype)
        assert difference(next_, one, CLOSE).worst_ulp == 1
    assert difference(torch.tensor([-1e-45]), torch.tensor([1e-45]), CLOSE).worst_ulp == 2


def test_indices_have_no_ulp() -> None:
    found = difference(torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3]), BITS)
    assert found.worst_ulp is None and found.first == (Miss((1,), "2", "5"),)


def test_undefined_elements_do_not_count() -> None:
    got, want = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [9.0, 9.0]])
    assert difference(got, want, BITS, torch.tensor([[True], [False]])).holds
    assert difference(got, want, BITS, torch.tensor([[True], [True]])).missed == 2


def test_shapes_and_dtypes() -> None:
    found = difference(torch.zeros(2), torch.zeros(3), NUMBERS)
    assert not found.holds and found.reason == "torch.float32 (2,) in place of torch.float32 (3,)"
    assert not difference(torch.zeros(2), torch.zeros(2).double(), NUMBERS).holds
    assert difference(torch.zeros(0, 4), torch.zeros(0, 4), BITS).holds


def test_an_output_may_have_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerances, "TOLERANCES", {"a.op": BITS, "a.op/sf": CLOSE})
    assert tolerances.bound("a.op") is tolerances.bound("a.op", "out") is BITS
    assert tolerances.bound("a.op", "sf") is CLOSE
    with pytest.raises(ValueError, match=r"a\.other has no tolerance"):
        tolerances.bound("a.other", "sf")


def test_the_table_keeps_its_columns() -> None:
    for row in tolerances.table().splitlines():
        assert row.replace("\\|", "").count("|") == 4, row
