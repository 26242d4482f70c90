"""The registry: every op has cases and a bound, inputs are the same bits everywhere, oracles agree with themselves."""

import importlib
import subprocess
import sys

import pytest
import torch

from monotile.parity import tolerances
from monotile.parity.cases import FAMILIES, cases, ops
from monotile.parity.draw import Draw

# Of this version, written down: another machine, another NumPy or another PyTorch must draw the same.
PINNED = {
    "quant.per_token_cast[tokens=33,hidden=576,fmt=e4m3,group=128,layout=row]": "c887483136925db616e10659ff5072e0",
    "quant.per_token_cast[tokens=12,hidden=192,fmt=e2m1,group=128,layout=row,values=special]":
        "2fb645e582e89768914c7305598971be",
    "moe.topk_gate[tokens=40,experts=72,k=9,values=special]": "8963803c307ff0432caefc2b553820c1",
    "moe.normalize_weight[tokens=45,k=8,values=wide]": "dc9edd1e5881110279beefeb66397016",
    "transpose.transpose[rows=65,columns=127,dtype=bfloat16]": "23860aa7e9037e8cc52985d50750042a",
    "mhc.mhc_sinkhorn_bwd[tokens=65,repeat=10,size=16]": "2f858a714a733edc2530e70d698cfccf",
}


def test_every_public_function_has_six_cases_and_a_bound() -> None:
    public = {f"{family}.{name}" for family in FAMILIES
              for name in importlib.import_module(f"monotile.{family}").__all__}
    assert set(ops()) == public == {name.partition("/")[0] for name in tolerances.TOLERANCES}
    for name in public:
        assert len(cases([name])) >= 6, name
        assert tolerances.bound(name).why


def test_names_and_hashes_are_distinct() -> None:
    assert len({case.name for case in cases()}) == len({case.hash for case in cases()}) == len(cases())


def test_inputs_are_the_same_bits_everywhere() -> None:
    found = {case.name: case.hash for case in cases()}
    assert {name: found[name] for name in PINNED} == PINNED


def test_inputs_are_the_same_in_another_process() -> None:
    program = "from monotile.parity.cases import cases; print(*(case.hash for case in cases()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [case.hash for case in cases()]


def test_arguments_and_seed_make_other_inputs() -> None:
    words = {tuple(Draw(op, {"n": n}, seed).words((4,)).tolist())
             for op in ("a", "b") for n in (1, 2) for seed in (0, 1)}
    assert len(words) == 8


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.float32,
                                   torch.int64], ids=str)
def test_bits_of_every_dtype(dtype: torch.dtype) -> None:
    drawn = Draw("a", {}, 0).bits((5, 7), dtype)
    assert drawn.dtype == dtype and drawn.shape == (5, 7) and drawn.is_contiguous()
    assert len(drawn.view(torch.uint8).unique()) > 1
    assert Draw("a", {}, 0).bits((0, 7), dtype).shape == (0, 7)


def test_drawn_numbers_lie_where_they_should() -> None:
    draw = Draw("a", {}, 0)
    assert set(draw.integers(-2, 3, (500,)).tolist()) == {-2, -1, 0, 1, 2}
    uniform, bell = draw.uniform((4000,)), draw.bell((4000,))
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1 and abs(float(uniform.mean()) - 0.5) < 0.03
    assert abs(float(bell.mean())) < 0.06 and abs(float(bell.std()) - 1) < 0.05 and float(bell.abs().max()) <= 3.5
    assert sorted(draw.order(100).tolist()) == list(range(100)) != draw.order(100).tolist()
    assert set(draw.powers(-1, 2, (200,)).tolist()) == {0.5, 1.0, 2.0}


def test_powers_of_two_are_exact() -> None:
    for exponent in (-126, -1, 0, 1, 127):
        assert Draw("a", {}, 0).powers(exponent, exponent + 1, (2,)).tolist() == [2.0**exponent] * 2
    assert Draw("a", {}, 0).powers(0, 1, (0, 3)).shape == (0, 3)
    for low, high in ((-127, 0), (0, 129)):
        with pytest.raises(ValueError, match="exponents must be in"):
            Draw("a", {}, 0).powers(low, high, (1,))


def test_what_is_masked_is_what_the_op_leaves_alone() -> None:
    """Rows that have an expert and no token, and no others: padding between experts is zeroed, and so is compared."""
    masked = 0
    for case in cases():
        if not case.call.defined:
            continue
        to_pos, to_expert = case.call.arguments[-2:] if case.op.name == "moe.expand_to_fused" else \
            case.call.arguments[2:4]
        written = to_expert < 0
        written[to_pos[to_pos >= 0].long()] = True
        results = case.expected()
        for output, defined in case.call.defined.items():
            assert defined.shape == (results[output].shape[0], 1) and torch.equal(defined[:, 0], written), case.name
        masked += int((~written).sum())
    assert masked
    assert {case.op.name for case in cases() if case.call.defined} == {
        "moe.expand_to_fused", "moe.expand_to_fused_with_sf"}


def test_padding_of_scales_is_no_part_of_a_result() -> None:
    """Rows up to the next 4 are beside the view that the op gives; bytes past the last group are 0, and compared."""
    (case,) = [c for c in cases(["quant.per_token_cast_with_sf_only"]) if c.arguments["layout"] == "packed"
               and c.arguments["tokens"] == 5]
    assert case.arguments["hidden"] == 576 and case.arguments["group"] == 128   # 5 groups: 2 words, 3 bytes spare
    scales = case.expected()["out_sf"]
    assert scales.shape == (5, 2) and bool((scales[:, 1] >> 8 == 0).all()) and bool((scales[:, 0] != 0).all())


def test_special_values_are_drawn() -> None:
    (case,) = [c for c in cases(["quant.per_token_cast"]) if c.arguments.get("values") == "special"
               and c.arguments["fmt"] == "e4m3"]
    x = case.call.arguments[0].float()
    assert bool(x.isnan().any()) and bool(x.isinf().any()) and bool((x == 0).any())
    assert bool(((x != 0) & (x.abs() < 2.0**-126)).any())
    assert bool((~x.isnan().any(1) & x.isfinite().all(1)).any())   # rows without them too


def test_unknown_ops_are_named() -> None:
    with pytest.raises(ValueError, match=r"there is no op 'quant\.cast' with cases; there are quant\.cast_back"):
        cases(["quant.cast"])
