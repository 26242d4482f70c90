"""Tilings: defaults, files, environment and context; every mistake is found on load and names its place."""

from pathlib import Path

import pytest

from monotile.compat.errors import TilingError
from monotile.targets import tiling
from monotile.targets.spec import ASCEND_910B, TARGETS
from monotile.targets.tiling import Tiling, override_tiling, resolve_tiling

OP = "moe.topk_gate"


def file_of(folder: Path, text: str) -> Path:
    path = folder / "chip.toml"
    path.write_text(text)
    return path


ROW = """# a comment
[["moe.topk_gate"]]
when = {num_experts = {min = 513}}
values = {tokens = 8}
why = "five tiles leave no room"
measured = false
"""


@pytest.mark.parametrize("name", TARGETS)
def test_the_files_of_every_target_load(name: str) -> None:
    import monotile

    assert monotile.moe   # its kernels are declared
    tiling.load(tiling.FOLDER / f"{name}.toml")


def test_a_row_matches_by_its_parameters(tmp_path: Path) -> None:
    (row,) = tiling.load(file_of(tmp_path, ROW))[OP]
    assert row.values == {"tokens": 8} and row.place.endswith("chip.toml:2")
    assert row.matches({"num_experts": 513}) and not row.matches({"num_experts": 512})


@pytest.mark.parametrize("before,after,words", [
    ("moe.topk_gate", "moe.top_gate", ":2: there is no kernel 'moe.top_gate'"),
    ("num_experts", "experts", ":3: the kernel has no parameter 'experts'"),
    ("{min = 513}", "{least = 513}", ":3: a range has min or max"),
    ("tokens = 8", "token = 8", ":4: there is no tiling key 'token'"),
    ("tokens = 8", 'tokens = "8"', ":4: tokens must be of type int"),
    ("values = {tokens = 8}", "values = {}", ":4: when and values must be tables"),
    ("five tiles leave no room", " ", ":5: why must say why"),
    ("measured = false", "measured = true", ":6: measured must say where"),
    ("measured = false", "measured = false\nuntil = 3", ":7: a row has when, values, why, measured"),
    ("measured = false\n", "", ":2: the row lacks measured"),
    ('[["moe.topk_gate"]]', '["moe.topk_gate"]', ":2: write a row as"),
    ("values = {", "values = {{", "chip.toml: "),
])
def test_mistakes_name_file_and_line(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in ROW
    with pytest.raises(TilingError) as raised:
        tiling.load(file_of(tmp_path, ROW.replace(before, after)))
    assert words in str(raised.value) and "chip.toml" in str(raised.value)


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Tiling(tokens=1, threads=32)
    many = {"num_experts": 1000, "top_k": 4}
    assert resolve_tiling(OP, defaults, ASCEND_910B, many).tokens == 8   # the file's row
    monkeypatch.setenv(tiling.VARIABLE, f"{OP}:tokens=4")
    assert resolve_tiling(OP, defaults, ASCEND_910B, many).tokens == 4
    with override_tiling(OP, tokens=2):
        assert resolve_tiling(OP, defaults, ASCEND_910B, many) == Tiling(tokens=2, threads=32)
    assert resolve_tiling(OP, defaults, ASCEND_910B, many).tokens == 4


@pytest.mark.parametrize("text,words", [
    ("topk", "write op:key=value"), ("moe.top:tokens=1", "there is no kernel 'moe.top'"),
    (f"{OP}:token=1", "has the tiling keys"), (f"{OP}:tokens=many", "tokens"),
])
def test_mistakes_in_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv(tiling.VARIABLE, text)
    with pytest.raises(TilingError, match=words):
        resolve_tiling(OP, Tiling(tokens=1, threads=32), ASCEND_910B, {})


def test_mistakes_in_a_context() -> None:
    with pytest.raises(TilingError, match="there is no kernel"), override_tiling("moe.top", tokens=1):
        pass
    with pytest.raises(TilingError, match="there is no tiling key"), override_tiling(OP, token=1):
        pass
