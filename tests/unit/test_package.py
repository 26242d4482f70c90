"""The package as a user gets it: what an import costs, what a wheel holds, what the command prints."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from monotile import cli, demo
from monotile.reference.quant import per_token_cast as reference
from monotile.targets.kernel import kernels

ROOT = Path(__file__).parents[2]
IMPORT_S = 0.5


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_is_quick_and_touches_no_compiler_and_no_device() -> None:
    told = json.loads(python("""
import json, sys, time
import torch, numpy
def refused(*a, **k): raise AssertionError("a device was probed")
torch.cuda.is_available = torch.cuda.get_device_capability = torch.cuda.init = refused
started = time.process_time()
import monotile
took = time.process_time() - started
there = [name for name in ("tilelang", "torch_npu", "tvm", "llvmlite") if name in sys.modules]
print(json.dumps({"took": took, "there": there}))
"""))
    assert told["there"] == []
    assert told["took"] < IMPORT_S


def test_a_wheel_holds_every_module_and_every_tiling(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                    "--wheel-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for folder, package in (("kernels", "monotile"), ("targets", "monotile/targets"), ("compat", "monotile/compat")):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".toml", ".h"):
                assert f"{package}/{path.relative_to(ROOT / folder)}" in held
    assert not any(name.startswith(("tests", "kernels", "build")) for name in held)


def test_the_command_lists_targets_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["targets", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [t["name"] for t in told["targets"]] == ["cuda-sm90", "ascend-910b", "ascend-910c", "ascend-950"]
    assert cli.main(["ops", "--json"]) == 0
    names = [k["kernel"] for k in json.loads(capsys.readouterr().out)]
    assert "quant.per_token_cast" in names and names == sorted(names)
    assert cli.main(["targets"]) == 0 and cli.main(["ops"]) == 0
    assert "missing" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(kernels()))
def test_every_kernel_says_what_is_particular_to_it(name: str) -> None:
    assert (kernels()[name].__doc__ or "").strip()


def test_wrong_usage_exits_with_2() -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["cast"])
    assert raised.value.code == 2


def test_an_error_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MONOTILE_EMULATOR", "quick")
    assert cli.main(["demo"]) == 1
    told = capsys.readouterr().err
    assert told == "monotile: MONOTILE_EMULATOR must be one of fast, checked, got 'quick'\n"


def test_the_demo_compares_and_would_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "SHAPES", ((33, 576),))
    assert demo.run() == 0
    told = capsys.readouterr().out
    for word in ("lowered", "accepted", "bytes of UB", "19,008 equal", "__global__", "All numbers are equal"):
        assert word in told
    honest = reference.per_token_cast

    def off_by_one(x: torch.Tensor, *arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, scales = honest(x, *arguments)   # type: ignore[arg-type]
        out.view(torch.uint8)[3, 5] += 1
        return out, scales

    monkeypatch.setattr(reference, "per_token_cast", off_by_one)
    assert demo.run() == 1
    assert "19,007 equal" in capsys.readouterr().out
