"""What every test shares: a header that says where tests run, and the emulator's checks turned on."""

from __future__ import annotations

import os

import pytest
import torch

import monotile
from monotile import environment

# Alignment, unwritten on-chip memory and two blocks writing one byte are checked in tests, unless asked otherwise.
os.environ.setdefault("MONOTILE_EMULATOR", "checked")


def pytest_report_header() -> list[str]:
    return environment.report()


@pytest.fixture
def device() -> torch.device:
    """Where the tensors of the selected target live."""
    return monotile.default_device()
