"""A host that is a folder: every effect on it is one appended journal line, so that a repeated effect can be seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.graph.model import Action, Evidence, Outcome, Probe, TaskContext

AT = Callable[[str], None]


class FakeHost:
    """`at(name)` is called before and after each effect: the crash harness kills the process there."""

    def __init__(self, folder: Path, at: AT = lambda name: None) -> None:
        self.folder = folder
        self.at = at
        self.journal = folder / "journal"

    def do(self, effect: str) -> None:
        self.at(f"before {effect}")
        handle = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{effect}\n".encode())  # one write of one short line: it is there or it is not
        os.close(handle)
        self.at(f"after {effect}")

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def has(self, part: str) -> bool:
        """Whether the newest line about `part` says that it is there."""
        about = [line for line in self.lines() if line.split()[1] == part]
        return bool(about) and about[-1].startswith("make")

    def parts(self) -> set[str]:
        return {line.split()[1] for line in self.lines() if self.has(line.split()[1])}


class Effect(Action):
    """Makes some parts exist, one after the other; undo takes them away in reverse."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def probe(self, ctx: TaskContext) -> Probe:
        missing = [part for part in self.parts if not ctx.host.has(part)]
        reason = f"missing: {', '.join(missing)}" if missing else "all there"
        return Probe(not missing, reason, {"parts": list(self.parts)})

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        for part in self.parts:
            ctx.check_cancelled()
            if not ctx.host.has(part):
                ctx.host.do(f"make {part}")
                ctx.log(f"made {part}")
        return {"parts": list(self.parts)}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("journal", ", ".join(part for part in self.parts if ctx.host.has(part)))

    def undo(self, ctx: TaskContext) -> None:
        for part in reversed(self.parts):
            if ctx.host.has(part):
                ctx.host.do(f"drop {part}")


class Look(Action):
    """Reads the host and returns what it saw."""

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        ctx.progress("looking", 1, 1)
        return {"saw": sorted(ctx.host.parts())}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("the folder", "readable", {"exists": ctx.host.folder.is_dir()})


class Measure(Look):
    """Leaves a metric and an artefact behind."""

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        ctx.metric("tokens_per_s", 12.5, arm="tree")
        ctx.artifact("rows.json", '{"rows": []}')
        return {"ratio": 1.25}


class Decide(Look):
    """Ends the run with an outcome of its own."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("ratio", "measured", outcome=self.outcome)


class Break(Look):
    """Fails every time."""

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        raise RuntimeError("the smoke test failed")


class NothingLeft(Look):
    """The check after a rollback: no part may exist."""

    def verify(self, ctx: TaskContext) -> Evidence:
        if ctx.host.parts():
            raise RuntimeError(f"still there: {sorted(ctx.host.parts())}")
        return Evidence("journal", "no part is left")
