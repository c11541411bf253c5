"""Runs in the engine's own environment: the CPU patches must be active before anything imports sglang."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "engine"
for folder in (str(ENGINE), str(Path(__file__).parent), os.environ.get("ENGINE_SGLANG_TREE", "")):
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)

from sglang_cpu.environment import VARIABLES  # noqa: E402

for _name, _value in VARIABLES.items():
    os.environ.setdefault(_name, _value)

import sglang_cpu  # noqa: E402

sglang_cpu.activate()

from harness import Engine, Pair, close_current  # noqa: E402

PAIRS = ("tiny-dense", "tiny-hybrid")


@pytest.fixture(scope="session", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Each shipped pair in turn."""
    return Pair.find(request.param)


@pytest.fixture(scope="session")
def hybrid() -> Pair:
    return Pair.find("tiny-hybrid")


@pytest.fixture(scope="session")
def dense() -> Pair:
    return Pair.find("tiny-dense")


@pytest.fixture
def engine() -> Iterator[type[Engine]]:
    """Engine.start(...) with the scheduler closed when the test ends."""
    yield Engine
    close_current()
