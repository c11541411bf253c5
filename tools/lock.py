"""Write constraints.txt: every installed distribution at its version, each with the reason why it is there.

Run in the project's environment after changing dependencies: `.venv/bin/python tools/lock.py`.
Direct dependencies take their reason from the comment beside them in pyproject.toml; the others name who needs them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "constraints.txt"
SKIP = {"orchestrate", "pip", "setuptools", "wheel"}
HEADER = "# Made by tools/lock.py. Pinned versions of everything the orchestrator's environment holds, and why.\n"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return normal(match.group(0)) if match else ""


def stated_reasons() -> dict[str, str]:
    """Name of each direct dependency and the comment on its line in pyproject.toml."""
    found = re.findall(r'^\s*"([A-Za-z0-9._-]+)[^"]*",?\s*#\s*(.+)$', (ROOT / "pyproject.toml").read_text(), re.M)
    return {normal(name): reason.strip() for name, reason in found}


def needed_by(distributions: list[metadata.Distribution]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = defaultdict(list)
    for distribution in distributions:
        for requirement in distribution.requires or []:
            if "extra ==" not in requirement:
                users[requirement_name(requirement)].append(normal(distribution.metadata["Name"]))
    return users


def main() -> None:
    distributions = [d for d in metadata.distributions() if normal(d.metadata["Name"]) not in SKIP]
    reasons, users = stated_reasons(), needed_by(distributions)
    lines = []
    for name, version in sorted({(normal(d.metadata["Name"]), d.version) for d in distributions}):
        others = ", ".join(sorted(set(users.get(name, ())) - {"orchestrate"}))
        reason = reasons.get(name) or (f"needed by {others}" if others else "extra of a direct dependency")
        lines.append(f"{name}=={version}  # {reason}")
    TARGET.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{TARGET.name}: {len(lines)} distributions")


if __name__ == "__main__":
    main()
