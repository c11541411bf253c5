"""Every static check, and one line `N passed, N failed`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CHECKS = (
    ("ruff format --check", ["ruff", "format", "--check", "-q", "."]),
    ("ruff check", ["ruff", "check", "-q", "."]),
    ("mypy --strict orchestrator", ["mypy"]),
    ("import contracts", ["lint-imports", "--no-cache"]),
    ("pre-commit configuration", ["pre-commit", "validate-config"]),
)


def main() -> int:
    failed = 0
    for name, command in CHECKS:
        done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        failed += done.returncode != 0
        print(f"{'ok ' if done.returncode == 0 else 'BAD'} {name}")
        if done.returncode:
            print(done.stdout + done.stderr)
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
