"""One server for all widths where the release can switch, one per budget where it can't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.readiness import EngineStartError
from orchestrator.release.launch import Launch
from tasks import tree_arms
from tasks.serving import SideEngine
from tasks.tree_arms import TreeArms
from tests.bench.stub_server import Stub, running_stub


class Host:
    """Stands for a host whose side engines are one stub; `most`: the widest that starts."""

    def __init__(self, stub: Stub, most: int = 4096, refuse: str = "", can_switch: bool = True) -> None:
        self.stub, self.most, self.refuse, self.can_switch = stub, most, refuse, can_switch
        self.started: list[tuple[int, str]] = []
        self.running = 0
        self.secret: list[str] = []
        self.lines: list[str] = []
        self.kept: list[str] = []
        services = SimpleNamespace(status=lambda name: SimpleNamespace(running=self.running > 0))
        self.ctx: Any = SimpleNamespace(
            host=SimpleNamespace(
                config=SimpleNamespace(transport="embedded"),
                services=services,
                masker=SimpleNamespace(add=self.secret.append),
            ),
            output=lambda key: {},
            log=self.lines.append,
            artifact=lambda name, content: self.kept.append(name),
        )

    def tree_engine(self, ctx: Any, purpose: str, nodes: int, env: dict[str, str] | None = None) -> SideEngine:
        return SideEngine("bench", Launch(argv=("serve", str(nodes)), env=env or {}), 1)

    @contextmanager
    def side_engine(self, ctx: Any, engine: SideEngine) -> Iterator[str]:
        nodes, widths = int(engine.launch.argv[1]), engine.launch.env.get("SGLANG_DDTREE_WIDTHS", "")
        self.started.append((nodes, widths))
        if nodes > self.most or (widths and self.refuse):
            raise EngineStartError(self.refuse or "out of memory")
        if self.can_switch:
            self.stub.script.token = engine.secrets.get("SGLANG_DDTREE_CONTROL_TOKEN", "")
        self.running += 1
        try:
            yield self.stub.url
        finally:
            self.running -= 1


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as made:
        yield made


def host(stub: Stub, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Host:
    made = Host(stub, **options)
    monkeypatch.setattr(tree_arms, "tree_engine", made.tree_engine)
    monkeypatch.setattr(tree_arms, "side_engine", made.side_engine)
    return made


def open_each(arms: TreeArms, budgets: list[int]) -> None:
    for budget in budgets:
        with arms.arm(budget)() as arm:
            assert arm.budget == budget
            if arm.switch:
                arm.switch()


def test_one_server_holds_all_widths_and_is_told_which(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host(stub, monkeypatch)
    with TreeArms(made.ctx, [32, 15], None) as arms:
        open_each(arms, [15, 32])
        assert made.running == 1
    assert made.started == [(32, "chain,15,32")]
    assert (stub.widths, made.running, made.kept) == ([15, 32], 0, ["widths.json"])
    assert made.secret == [stub.script.token]


def test_a_server_that_died_is_started_again_for_the_next_budget(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host(stub, monkeypatch)
    with TreeArms(made.ctx, [15, 32], None) as arms:
        open_each(arms, [15])
        made.running = 0
        open_each(arms, [32])
    assert made.started == [(32, "chain,15,32")] * 2


def test_the_widest_is_left_out_when_no_server_starts_with_it(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host(stub, monkeypatch, most=32)
    with TreeArms(made.ctx, [15, 32, 1024], None) as arms:
        open_each(arms, [15, 32])
        with pytest.raises(OrchestrateError, match="1024 nodes"):
            open_each(arms, [1024])
    assert made.started == [(1024, "chain,15,32,1024"), (32, "chain,15,32")]


@pytest.mark.parametrize("refuse", ["", "SGLANG_DDTREE_WIDTHS takes chain and node budgets from 15"])
def test_without_a_switch_each_budget_gets_a_server(stub: Stub, monkeypatch: pytest.MonkeyPatch, refuse: str) -> None:
    made = host(stub, monkeypatch, refuse=refuse, can_switch=False)
    with TreeArms(made.ctx, [15, 32], None) as arms:
        open_each(arms, [15, 32])
    assert made.started == [(32, "chain,15,32"), (15, ""), (32, "")]
    assert (stub.widths, made.running) == ([], 0)


def test_a_single_budget_needs_no_switch(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host(stub, monkeypatch)
    with TreeArms(made.ctx, [15], None) as arms:
        open_each(arms, [15])
    assert made.started == [(15, "")]
