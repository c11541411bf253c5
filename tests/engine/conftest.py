"""Runs in the engine's own environment: the CPU patches must be active before anything imports sglang."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ENGINE = Path(__file__).resolve().parents[2] / "engine"
for _folder in (str(_ENGINE), str(Path(__file__).parent), os.environ.get("ENGINE_SGLANG_TREE", "")):
    if _folder and _folder not in sys.path:
        sys.path.insert(0, _folder)

PAIRS = ("tiny-dense", "tiny-hybrid")

if importlib.util.find_spec("sglang") is None:
    # Another interpreter collects all of tests/: these need the engine's, where none collected is an error.
    collect_ignore_glob = ["test_*.py"]
else:
    from sglang_cpu.environment import VARIABLES

    for _name, _value in VARIABLES.items():
        os.environ.setdefault(_name, _value)

    import sglang_cpu

    sglang_cpu.activate()

    from harness import Engine, Pair, close_current


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
