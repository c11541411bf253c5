"""Facts of real wheels against the fixtures; large downloads, so only with ORCHESTRATE_FULL=1 (`make test-full`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tasks.inspecting import flags, versions_table
from tests.inspect import collect_facts

pytestmark = pytest.mark.skipif(
    os.environ.get("ORCHESTRATE_FULL") != "1", reason="downloads gigabytes; set ORCHESTRATE_FULL=1"
)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheels are unpacked; ORCHESTRATE_WHEELS keeps them between runs."""
    kept = os.environ.get("ORCHESTRATE_WHEELS")
    return Path(kept) if kept else tmp_path_factory.mktemp("wheels")


@pytest.mark.parametrize(
    ("package", "version"),
    [("sglang", v) for v in collect_facts.SGLANG] + [("vllm", v) for v in collect_facts.VLLM],
)
def test_facts_of_a_wheel(package: str, version: str, unpacked: Path) -> None:
    collect_facts.download(package, version, unpacked / package)
    found = json.loads(json.dumps(versions_table.read_facts(package, unpacked / package / version)))
    assert found == json.loads((collect_facts.FIXTURES / f"{package}_versions.json").read_text())[version]


def test_the_option_table(unpacked: Path) -> None:
    for version in collect_facts.SGLANG:
        collect_facts.download("sglang", version, unpacked / "sglang")
    assert collect_facts.option_spans(unpacked / "sglang") == json.loads(flags.TABLE.read_text())
