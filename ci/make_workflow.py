"""Write .github/workflows/ci.yml from ci/matrix.toml; with --check, say whether it is in step (exit status 1: no)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from legs import ROOT, CiError, Device, Leg, Matrix, read

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
HEADER = "# Written by ci/make_workflow.py from ci/matrix.toml: change that, then `make workflow`.\n"
NIGHT = "17 2 * * *"
LAUNCHER = "3.11"   # what runs ci/run_leg.py on a machine of GitHub's; a leg's own Python may be another


def workflow(matrix: Matrix) -> str:
    """The text of the workflow."""
    jobs = {}
    for device in matrix.devices.values():
        for when in ("change", "nightly"):
            legs = [leg for leg in matrix.legs.values() if leg.device is device and leg.when == when]
            if legs:
                jobs[device.name if when == "change" else f"{device.name}-nightly"] = _job(device, legs, when)
    page = {
        "name": "ci",
        "on": {"push": {"branches": ["main"]}, "pull_request": {}, "schedule": [{"cron": NIGHT}],
               "workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        # a newer push to a branch takes the place of the run before; the runs of main are all kept
        "concurrency": {"group": "ci-${{ github.ref }}-${{ github.event_name }}",
                        "cancel-in-progress": "${{ github.event_name == 'pull_request' }}"},
        "jobs": jobs,
    }
    return HEADER + yaml.dump(page, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _job(device: Device, legs: Sequence[Leg], when: str) -> dict[str, Any]:
    """One job a device: its matrix is every leg on every Python."""
    rows = [{"leg": leg.name, "python": python, "minutes": leg.minutes} for leg in legs for python in leg.python]
    job: dict[str, Any] = {"name": "${{ matrix.leg }} (Python ${{ matrix.python }})"}
    condition = _condition(device, when)
    if condition:
        job["if"] = condition
    job |= {"runs-on": device.runner[0] if len(device.runner) == 1 else list(device.runner),
            "timeout-minutes": "${{ matrix.minutes }}",
            "strategy": {"fail-fast": False, "matrix": {"include": rows}}}
    if not device.hosted:
        job["strategy"]["max-parallel"] = 1   # one leg at a time has the device
    if device.hosted and device.hosted_env:
        job["env"] = dict(device.hosted_env)
    steps: list[dict[str, Any]] = [{"uses": "actions/checkout@v4"}]
    if device.hosted:
        steps.append({"uses": "actions/setup-python@v5",
                      "with": {"python-version": f"${{{{ matrix.python }}}}\n{LAUNCHER}\n", "cache": "pip",
                               "cache-dependency-path": "ci/constraints.txt"}})
    python = f"python{LAUNCHER}" if device.hosted else "python3"
    steps.append({"run": f"{python} ci/run_leg.py ${{{{ matrix.leg }}}} --python ${{{{ matrix.python }}}}"})
    return job | {"steps": steps}


def _condition(device: Device, when: str) -> str:
    parts = []
    if when == "nightly":
        parts.append("(github.event_name == 'schedule' || github.event_name == 'workflow_dispatch')")
    elif not device.hosted:
        parts.append("github.event_name != 'pull_request'")   # a stranger's code does not reach a machine of ours
    if not device.hosted:
        # without a runner a job would wait for a day: the repository's variable names the devices that there are
        parts.append(f"contains(fromJSON(vars.DEVICES || '[]'), '{device.name}')")
    return " && ".join(parts)


class _Dumper(yaml.SafeDumper):
    """Lists indented under their key, several lines as a block, no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write .github/workflows/ci.yml from ci/matrix.toml.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the file is out of step")
    parser.add_argument("--output", type=Path, default=WORKFLOW, help="the workflow's file")
    options = parser.parse_args(arguments)
    try:
        text = workflow(read())
    except CiError as error:
        print(f"make_workflow: {error}", file=sys.stderr)
        return 2
    if not options.check:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
        return 0
    if options.output.exists() and options.output.read_text(encoding="utf-8") == text:
        return 0
    print(f"{options.output} is out of step with ci/matrix.toml: run `make workflow`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
