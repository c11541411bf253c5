"""The parity check of a deploy against real servers: a right release passes, each of four broken ones is refused.

Minutes long on two cores, so a group of its own: `python -m tools.run_tests broken`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import QUICK, Result, Story

ONLY_COMPARE = ("run", "deploy-ddtree", "--yes", *QUICK, "--only", "compare")
# Fault -> the plug-in's file at whose end it is put, and the code.
FAULTS = {
    "wrong_rope_depth": (
        "verify_input.py",
        """
_right = DDTreeVerifyInput.from_tables.__func__
def _rows_for_depths(cls, tables, prefix):
    verify = _right(cls, tables, prefix)
    verify.positions = (prefix[:, None] + torch.arange(tables.width)).reshape(-1)
    return verify
DDTreeVerifyInput.from_tables = classmethod(_rows_for_depths)
""",
    ),
    "stale_hybrid_state": (
        "hybrid.py",
        """
StateFreeVerify.commit = lambda self, *args: self.records.clear()
""",
    ),
    "compaction_off_by_one": (
        "ops.py",
        """
_right_compact = compact_kv
def compact_kv(buffers, slots, path, *rest):
    shifted = path.clone()
    shifted[:, 1:] = (path[:, 1:] + 1).clamp(max=slots.shape[-1] - 1)
    return _right_compact(buffers, slots, shifted, *rest)
""",
    ),
    "slot_zero_masked": (
        "ops.py",
        """
_right_mask = tree_mask
def tree_mask(tables):
    mask = _right_mask(tables).clone()
    mask[:, 1:, 0] = False
    return mask
""",
    ),
}


@pytest.fixture(scope="module")
def release(story: Story) -> Path:
    """The plug-in's folder in a release that the parity check has let through."""
    run = story.orchestrate(*ONLY_COMPARE)
    assert run.code == 0, run.stderr[-3000:]
    assert_right(run)
    releases = story.environment().parents[1] / "ddtree" / "releases"
    (plugin,) = releases.glob("ddtree-*/venv/lib/python*/site-packages/sglang_ddtree")
    return plugin


def assert_right(run: Result) -> None:
    compared = run.tasks()["compare"]["evidence"]["output"]
    assert "steps of 8 prompts as in the offline baseline tiny-hybrid" in compared


@contextlib.contextmanager
def added(file: Path, code: str) -> Iterator[None]:
    """The file with `code` at its end. Each time a new file under the name, as the old one may be a hard link."""
    right = file.read_text()
    try:
        _replace(file, right + code)
        yield
    finally:
        _replace(file, right)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_engine_is_refused_by_prompt_step_and_node(story: Story, release: Path, name: str) -> None:
    file, code = FAULTS[name]
    with added(release / file, code):
        run = story.orchestrate(*ONLY_COMPARE, "--force", "compare")
    assert run.code == 1, run.stderr[-3000:]
    error = run.document["error"]
    assert "DDTREE leaves the offline baseline tiny-hybrid.json: prompt code-" in error
    assert ", step " in error
    assert "node at depth" in error
    assert run.tasks()["compare"]["state"] == "failed"
    assert story.server_info()["speculative_algorithm"] == "DFLASH"


def test_the_same_release_without_a_fault_passes_again(story: Story, release: Path) -> None:
    run = story.orchestrate(*ONLY_COMPARE, "--force", "compare")
    assert run.code == 0, run.stderr[-3000:]
    assert_right(run)
