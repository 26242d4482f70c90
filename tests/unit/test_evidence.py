"""Evidence: what is recorded, what is withdrawn, what the table says, and that the committed one is in step."""

import json
from pathlib import Path

import pytest

from monotile import evidence
from monotile.evidence import NOT_RUN, Recorder

OP, OTHER = "quant.per_token_cast", "moe.topk_gate"
PLACE = ("ascend-910b", "npuir")


def recorded(folder: Path, *passed: tuple[object, ...], failed: tuple[tuple[str, str, str], ...] = ()) -> None:
    recorder = Recorder()
    for each in passed:
        recorder.passed(*each)   # type: ignore[arg-type]
    for each in failed:
        recorder.failed(*each)
    recorder.write(folder)


def test_levels_come_from_what_passed(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1), (OP, *PLACE, "emulator", "a compiler", 2),
             (OTHER, *PLACE, "emulator", None, 1))
    found = evidence.levels(tmp_path)
    assert found[(OP, *PLACE)] == {1, 2, 3} and found[(OTHER, *PLACE)] == {1, 3}
    assert {each.op: each.cases for each in evidence.records(tmp_path)} == {OP: 2, OTHER: 1}


def test_one_kernel_that_the_compiler_did_not_take_costs_the_level(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1), (OP, *PLACE, "emulator", None, 1))
    assert evidence.levels(tmp_path)[(OP, *PLACE)] == {1, 3}


def test_empty_calls_alone_are_no_evidence(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", None, 0))
    assert evidence.records(tmp_path) == []


def test_what_was_built_and_not_run_is_not_equal_to_anything(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, NOT_RUN, "a compiler", 1))
    assert evidence.levels(tmp_path)[(OP, *PLACE)] == {1, 2}


def test_building_does_not_take_the_place_of_running(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1))
    recorded(tmp_path, (OP, *PLACE, NOT_RUN, "a compiler", 1))
    assert evidence.levels(tmp_path)[(OP, *PLACE)] == {1, 2, 3}


def test_a_failure_withdraws_what_was_recorded_there_alone(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1), (OTHER, *PLACE, "emulator", "a compiler", 1),
             (OP, "ascend-950", "ascendc", "emulator", None, 1))
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1), failed=((OP, *PLACE),))
    assert set(evidence.levels(tmp_path)) >= {(OTHER, *PLACE), (OP, "ascend-950", "ascendc")}
    assert OP not in {each.op for each in evidence.records(tmp_path) if each.target == PLACE[0]}


def test_other_ops_records_are_kept(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1))
    recorded(tmp_path, (OTHER, *PLACE, "emulator", "a compiler", 1))
    assert {each.op for each in evidence.records(tmp_path)} == {OP, OTHER}


def test_a_changed_source_is_said(tmp_path: Path) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1))
    assert evidence.stale(tmp_path) == []
    path = tmp_path / "ascend-910b-npuir.json"
    told = json.loads(path.read_text())
    told[0]["source"] = "0" * 16
    path.write_text(json.dumps(told))
    (said,) = evidence.stale(tmp_path)
    assert "quant.per_token_cast on ascend-910b (npuir) was recorded from another version" in said
    (row,) = [line for line in evidence.table(tmp_path).splitlines() if f"`{OP}`" in line]
    assert "1 2 3\\*" in row


def test_a_digest_has_what_the_family_shares_and_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: (read.append("/".join(self.parts[-2:])), plain(self))[1])
    evidence.digest.cache_clear()
    evidence.digest(OP)
    assert set(read) == {"quant/casting.py", "quant/per_token_cast.py", "quant/scale_layout.py"}
    assert read.count("quant/per_token_cast.py") == 2   # the kernel's and the oracle's


def test_ops_that_no_gpu_recorded_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path, (OP, *PLACE, "emulator", "a compiler", 1))
    monkeypatch.setattr(evidence, "not_recorded", lambda: {OP})
    (row,) = [line for line in evidence.table(tmp_path).splitlines() if f"`{OP}`" in line]
    assert "1 2 3° " in row


def test_less_than_committed_is_said(tmp_path: Path) -> None:
    fresh, committed = tmp_path / "fresh", tmp_path / "committed"
    recorded(committed, (OP, *PLACE, "emulator", "a compiler", 1),
             (OTHER, "ascend-950", "ascendc", "emulator", None, 1))
    recorded(fresh, (OP, *PLACE, "emulator", None, 1))
    (told,) = [each for each in evidence.worse(fresh, committed) if each.startswith(OP)]
    assert "reached [1, 3] now, and [1, 2, 3] is committed" in told
    assert evidence.worse(committed, committed) == []


def test_the_committed_tables_are_what_the_evidence_says() -> None:
    assert evidence.in_step() == []
