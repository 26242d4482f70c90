"""CI's own code: the matrix is sound, the workflow is in step with it, a leg runs or says why not."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from monotile.targets.spec import TARGETS

ROOT = Path(__file__).parents[2]
CI = ROOT / "ci"


@pytest.fixture(scope="module")
def ci() -> ModuleType:
    """ci/run_leg.py as a module; the modules beside it are then importable too."""
    sys.path.insert(0, str(CI))
    try:
        import run_leg
        return run_leg
    finally:
        sys.path.remove(str(CI))


def run_leg(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CI / "run_leg.py"), *arguments], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, check=False)


# ---------------------------------------------------------------------- the matrix
def test_legs_name_what_exists(ci: ModuleType) -> None:
    matrix = ci.read()
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert matrix.legs["cpu-emulator"].when == "change"
    for leg in matrix.legs.values():
        assert all((ROOT / path).exists() for path in leg.paths), leg.name
        for words in leg.checks.values():
            assert all((ROOT / word).is_file() for word in words if word.endswith(".py")), leg.name
        for word in set(re.findall(r"[a-z]+", leg.marker)) - {"not", "and", "or"}:
            assert f'"{word}: ' in config, f"{leg.name}: pytest knows no marker {word}"
    assert f"-m '{ci.read().legs['cpu-emulator'].marker}'" in config


def test_every_target_has_a_device_and_every_npu_leg_its_chip(ci: ModuleType) -> None:
    devices = {d.env["KERNEL_TARGET"]: d for d in ci.read().devices.values() if d.probe != "none"}
    assert set(devices) == {t.kernel_target for t in TARGETS.values()}
    for target in TARGETS.values():
        device = devices[target.kernel_target]
        assert device.env["KERNEL_EXECUTOR"] == "device"   # a leg for a card must not pass in the emulator
        assert not device.hosted
        if target.is_ascend:
            assert (device.probe, device.chip) == ("npu", target.part_pattern)


@pytest.mark.parametrize("edit,words", [
    (('device = "box"', 'device = "other"'), "legs.one: device must be one of box, got 'other'"),
    (('checks = ["a", "b"]', 'checks = ["c"]'), "legs.one: check must be one of a, b, got 'c'"),
    (('when = "change"', 'when = "often"'), "legs.one: when must be one of change, nightly, got 'often'"),
    (('probe = "none"', 'probe = "cuda"'), "devices.box: a device that is probed has a chip"),
    (("minutes = 5", "minuets = 5"), "unexpected keyword argument 'minuets'"),
])
def test_a_wrong_matrix_is_refused(ci: ModuleType, tmp_path: Path, edit: tuple[str, str], words: str) -> None:
    path = small(tmp_path)
    path.write_text(path.read_text().replace(*edit))
    told = run_leg("one", "--matrix", str(path), "--no-venv")
    assert told.returncode == 2 and words in told.stderr and "Traceback" not in told.stderr


def test_the_workflow_is_in_step(tmp_path: Path) -> None:
    def check(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(CI / "make_workflow.py"), *more], capture_output=True, text=True,
                              check=False)

    told = check("--check")
    assert told.returncode == 0, told.stderr
    copy = tmp_path / "ci.yml"
    assert check("--output", str(copy)).returncode == 0
    copy.write_text(copy.read_text().replace("minutes: 60", "minutes: 61", 1))
    told = check("--check", "--output", str(copy))
    assert told.returncode == 1 and "make workflow" in told.stderr


def test_the_workflow_runs_every_leg_and_nothing_of_a_stranger_on_our_machines(ci: ModuleType) -> None:
    page = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    rows = [(row["leg"], row["python"]) for job in page["jobs"].values()
            for row in job["strategy"]["matrix"]["include"]]
    assert sorted(rows) == sorted((leg.name, python) for leg in ci.read().legs.values() for python in leg.python)
    for job in page["jobs"].values():
        if "self-hosted" in job["runs-on"]:
            assert "!= 'pull_request'" in job["if"] or "== 'schedule'" in job["if"]
            assert "vars.DEVICES" in job["if"] and job["strategy"]["max-parallel"] == 1
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v0"))


# ---------------------------------------------------------------------- refusals
def test_an_unknown_leg_is_answered_with_the_list(ci: ModuleType) -> None:
    told = run_leg("gpu")
    assert told.returncode == 2 and all(name in told.stderr for name in ci.read().legs)
    assert run_leg("--list").stdout.count("\n") == len(ci.read().legs)


def test_a_python_that_is_not_the_legs_is_refused() -> None:
    told = run_leg("cpu-emulator", "--python", "3.9")
    assert told.returncode == 2 and "runs on Python 3.11, 3.10, 3.12, 3.13, not 3.9" in told.stderr


def test_a_missing_device_is_one_sentence(ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ci.devices, "DEV", tmp_path)
    for name, words in (("cuda-h200", "no nvidia-smi"), ("ascend-910b", "no NPU"), ("ascend-950", "no NPU")):
        with pytest.raises(ci.CiError, match=rf"leg {name} needs .*{words}"):
            ci.devices.check_machine(ci.read().legs[name])
    (tmp_path / "davinci0").touch()
    ci.devices.check_machine(ci.read().legs["ascend-910b"])


@pytest.mark.parametrize("lists,fits", [("NVIDIA H200", True), ("Tesla T4", False), ("Tesla T4\nNVIDIA H200", True)])
def test_another_gpu_is_refused(ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str,
                                fits: bool) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nprint({lists!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    leg = ci.read().legs["cuda-h200"]
    if fits:
        ci.devices.check_machine(leg)
    else:
        with pytest.raises(ci.CiError, match="needs an NVIDIA H200, and this machine has Tesla T4"):
            ci.devices.check_machine(leg)


@pytest.mark.parametrize("calls_itself,words", [
    ("Ascend910B3", None), ("Ascend910_9392", "this machine has Ascend910_9392"),
    (None, "torch does not reach it: RuntimeError: no driver")])
def test_another_npu_is_refused(ci: ModuleType, tmp_path: Path, calls_itself: str | None, words: str | None) -> None:
    """By stand-ins for torch and torch_npu: there is no NPU here."""
    (tmp_path / "torch.py").write_text("")
    body = f"return {calls_itself!r}" if calls_itself else "raise RuntimeError('no driver')"
    (tmp_path / "torch_npu.py").write_text(f"class npu:\n    @staticmethod\n    def get_device_name(index):\n"
                                           f"        {body}\n")
    leg, env = ci.read().legs["ascend-910b"], {"PYTHONPATH": str(tmp_path)}
    if words is None:
        assert ci.devices.check_torch(leg, sys.executable, env) == calls_itself
    else:
        with pytest.raises(ci.CiError, match=re.escape(words)):
            ci.devices.check_torch(leg, sys.executable, env)


# ---------------------------------------------------------------------- a run
def small(folder: Path) -> Path:
    """A matrix of one leg, whose checks print what they see and end as told."""
    path = folder / "matrix.toml"
    path.write_text("""
[devices.box]
about = "nothing"
runner = ["ubuntu-24.04"]
probe = "none"
extras = "test"

[checks]
a = ["-c", "import os; print('a sees', sorted(k for k in os.environ if k[:6] in ('KERNEL', 'MONOTI', 'FUZZ_C')))"]
b = ["-c", "import os, sys; print('b sees', os.environ['KERNEL_TARGET']); sys.exit(int(os.environ['FUZZ_CASES']))"]

[legs.one]
about = "two checks"
device = "box"
when = "change"
python = ["3.11"]
checks = ["a", "b"]
env = { KERNEL_TARGET = "ascend", FUZZ_CASES = "0" }
minutes = 5
""")
    return path


def test_checks_run_in_order_under_the_legs_variables_alone(tmp_path: Path) -> None:
    page = tmp_path / "summary.md"
    env = {"KERNEL_EXECUTOR": "device", "MONOTILE_TILING": "x", "MONOTILE_EMULATOR": "fast",
           "GITHUB_STEP_SUMMARY": str(page)}
    told = run_leg("one", "--matrix", str(small(tmp_path)), "--no-venv", env=env)
    assert told.returncode == 0, told.stderr
    seen = re.search(r"a sees (\[.*\])", told.stdout)
    assert seen and set(eval(seen[1])) - {"MONOTILE_CACHE_DIR"} == {"KERNEL_TARGET", "FUZZ_CASES"}
    assert "b sees ascend" in told.stdout
    assert re.search(r"a +\d+\.\d s  passed\n +b +\d+\.\d s  passed", told.stdout)
    assert "| b |" in page.read_text()


def test_a_check_that_fails_is_told_and_the_others_still_run(tmp_path: Path) -> None:
    path = small(tmp_path)
    path.write_text(path.read_text().replace('checks = ["a", "b"]', 'checks = ["b", "a"]'))
    told = run_leg("one", "--matrix", str(path), "--no-venv", "--set", "FUZZ_CASES=3")
    assert told.returncode == 1
    assert re.search(r"b +\d+\.\d s  failed \(exit status 3\)\n +a +\d+\.\d s  passed", told.stdout)


def test_what_the_machine_brings_is_not_pinned(ci: ModuleType) -> None:
    matrix = ci.read()
    names = [re.split("[=;]", line)[0] for line in
             ci.constraints(matrix.legs["ascend-910b"], matrix).splitlines() if not line.startswith("#")]
    assert "tilelang" in names and "pytest" in names
    assert not {"torch", "numpy", "sympy", "Jinja2", "typing_extensions"} & set(names)
    assert ci.constraints(matrix.legs["cpu-emulator"], matrix) == (CI / "constraints.txt").read_text(encoding="utf-8")
