"""The program's cut-over to the stand-in engine, for tests on embedded hosts and on test hosts."""

from __future__ import annotations

from orchestrator.graph.model import TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.release.build import with_launch
from orchestrator.release.launch import with_flags
from orchestrator.release.manifest import Manifest
from tasks.launch import ALGORITHM, WIDTH
from tasks.linear import linear_release
from tasks.samples import Sample
from tasks.takeover import TakeOver


class ToTree(TakeOver):
    """The program's cut-over, to the stand-in started as a tree; `more` are further words of its command."""

    algorithm = "DDTREE"

    def __init__(self, expected: list[Sample], *more: str) -> None:
        self._expected, self._more = expected, more

    def previous(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return linear_release(ctx, replica)

    def target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        linear = linear_release(ctx, replica)
        argv = (*with_flags(linear.launch.argv, {ALGORITHM: "DDTREE", WIDTH: "16"}), *self._more)
        return with_launch(linear, linear, linear.launch.model_copy(update={"argv": argv}), "dflash")

    def expected(self, ctx: TaskContext) -> list[Sample]:
        return self._expected
