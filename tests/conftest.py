"""What every test shares: a header that says where tests run, and the emulator's checks turned on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import monotile
from monotile import environment, evidence

# Alignment, unwritten on-chip memory and two blocks writing one byte are checked in tests, unless asked otherwise.
os.environ.setdefault("MONOTILE_EMULATOR", "checked")


def pytest_report_header() -> list[str]:
    return environment.report()


@pytest.fixture
def device() -> torch.device:
    """Where the tensors of the selected target live."""
    return monotile.default_device()


# ---------------------------------------------------------------------- evidence
EVIDENCE = "MONOTILE_EVIDENCE"   # a folder: what passes is written there, for monotile matrix
_recorder = evidence.Recorder()


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    told: dict[str, Any] = dict(report.user_properties)
    if "place" in told and report.failed:
        _recorder.failed(*told["place"])
    elif "evidence" in told and report.when == "call" and report.passed:
        _recorder.passed(*told["evidence"])


@pytest.hookimpl
def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get(EVIDENCE) and not hasattr(session.config, "workerinput"):
        _recorder.write(Path(os.environ[EVIDENCE]))
