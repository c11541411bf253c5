"""The graph `demo`: files in a folder stand for what a deployment changes on a host. `--set folder=…` says where."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.graph.model import Action, Change, Evidence, GraphSpec, Probe, TaskContext, TaskSpec
from orchestrator.graph.registry import GraphRequest


class Note(Action):
    """Writes a file; a file `NAME.hold` beside it keeps it waiting, one `NAME.fail` makes it fail."""

    def __init__(self, name: str) -> None:
        self.name = name

    def path(self, ctx: TaskContext, suffix: str = "") -> Path:
        return Path(ctx.settings["folder"]) / f"{self.name}{suffix}"

    def probe(self, ctx: TaskContext) -> Probe:
        there = self.path(ctx).exists()
        return Probe(there, f"{self.path(ctx)} {'is there' if there else 'is not there'}")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        return (Change("file", str(self.path(ctx)), "is written", diff=f"--- old\n+++ new\n+{self.name}\n"),)

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        ctx.log(f"writing {self.name}")
        rounds = 0
        while self.path(ctx, ".hold").exists():
            ctx.check_cancelled()
            ctx.log(f"{self.name} waits, round {rounds}")
            rounds += 1
            time.sleep(0.1)
        if self.path(ctx, ".fail").exists():
            raise ValueError(f"{self.name} was told to fail")
        self.path(ctx).write_text(self.name)
        return {"file": str(self.path(ctx))}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence(f"read {self.path(ctx)}", self.path(ctx).read_text())

    def undo(self, ctx: TaskContext) -> None:
        self.path(ctx).unlink(missing_ok=True)
        ctx.log(f"removed {self.name}")


class AllGone(Note):
    """Proves that no file is left."""

    def verify(self, ctx: TaskContext) -> Evidence:
        left = [path.name for path in Path(ctx.settings["folder"]).glob("step-*") if not path.suffix]
        if left:
            raise ValueError(f"still there: {left}")
        return Evidence("looked for files", "none is left")


class Remove(AllGone):
    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "always looked at anew")

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        for path in Path(ctx.settings["folder"]).glob("step-*"):
            if not path.suffix:
                path.unlink()
                ctx.log(f"removed {path.name}")
        return {}


def demo(request: GraphRequest) -> GraphSpec:
    folder = {"folder": request.settings.get("folder", ".")}
    names = ("step-one", "step-two", "step-three")[: int(request.settings.get("steps", "3"))]
    tasks = tuple(
        TaskSpec(name, f"Write {name} into {folder['folder']}", "write", Note(name), names[max(0, at - 1) : at],
                 changes_host=True)
        for at, name in enumerate(names)
    )  # fmt: skip
    return GraphSpec("demo", tasks, "Writes three files.", AllGone("rest"))


def back(request: GraphRequest) -> GraphSpec:
    """Stands in for the graph `rollback`."""
    return GraphSpec(
        "demo-back", (TaskSpec("remove", "Remove the files", "rollback", Remove("all"), changes_host=True),)
    )
