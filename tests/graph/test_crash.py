"""A sample of the crash matrix; `make crash-matrix` tries every point."""

from __future__ import annotations

import subprocess
import sys


def test_ten_random_kill_points_end_as_if_nothing_had_happened() -> None:
    """In a process of its own, because the matrix forks and must not inherit threads."""
    command = [sys.executable, "-m", "tests.graph.crash_matrix", "--points", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-2:] == ["10 kill points tried", "10 passed, 0 failed"], done.stdout + done.stderr
    assert done.returncode == 0
