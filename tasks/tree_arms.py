"""The tree side of a sweep: one server that holds every width, where its release can switch, else one per budget."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from orchestrator.bench.arm import Arm, ArmFactory
from orchestrator.bench.rows import HostSample
from orchestrator.bench.width_switch import CHAIN, TOKEN_ENV, WIDTHS_ENV, WidthSwitch
from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import TaskContext
from orchestrator.hosts.readiness import EngineStartError
from orchestrator.openai.endpoint import Endpoint
from tasks.patch import tree_engine
from tasks.serving import SideEngine, main_process, side_engine

Sample = Callable[[], HostSample | None]


@dataclass
class _Shared:
    """The running server that holds several widths."""

    engine: SideEngine
    url: Endpoint
    switch: WidthSwitch
    held: tuple[int, ...]
    life: ExitStack


class TreeArms:
    """Use as a context manager around the sweep; `arm(budget)` is what the sweep opens for that budget."""

    def __init__(self, ctx: TaskContext, budgets: Sequence[int], sample: Sample | None) -> None:
        self._ctx, self._budgets, self._sample = ctx, sorted(budgets), sample
        self._flush = ctx.host.config.transport == "embedded"
        self._shared: _Shared | None = None
        self._alone = len(budgets) < 2

    def __enter__(self) -> TreeArms:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def arm(self, budget: int) -> ArmFactory:
        @contextlib.contextmanager
        def factory() -> Iterator[Arm]:
            shared = self._running()
            if shared is None:
                with self._own_server(budget) as (unit, url):
                    yield self._arm(unit, url, budget)
            elif budget in shared.held:
                yield self._arm(shared.engine.name, shared.url, budget, lambda: shared.switch.set(budget))
            else:
                raise OrchestrateError(f"the server that holds all widths did not start with {budget} nodes")

        return factory

    def _arm(self, unit: str, url: Endpoint, budget: int, switch: Callable[[], Any] | None = None) -> Arm:
        return Arm(
            f"ddtree-{budget}",
            url,
            budget,
            switch=switch,
            identity=lambda: main_process(self._ctx.host, unit),
            sample=self._sample,
            flush=self._flush,
        )

    @contextlib.contextmanager
    def _own_server(self, budget: int) -> Iterator[tuple[str, Endpoint]]:
        """Unit and address of a server of this budget alone; the canary, when it has that budget."""
        ctx = self._ctx
        canary = ctx.output("canary")
        if canary.get("nodes") == budget and ctx.host.services.status(str(canary.get("unit"))).running:
            with ctx.host.http(int(canary["port"])) as url:
                yield str(canary["unit"]), url
            return
        engine = tree_engine(ctx, "bench", budget)
        with side_engine(ctx, engine) as url:
            yield engine.name, url

    # -- the server with all widths ----------------------------------------------------------------------

    def _running(self) -> _Shared | None:
        """The shared server, started when it is first needed and again when it died; None: one server per budget."""
        if self._shared and not self._ctx.host.services.status(self._shared.engine.name).running:
            self._stop()
        if self._shared is None and not self._alone:
            self._shared = self._start()
            self._alone = self._shared is None
        return self._shared

    def _start(self) -> _Shared | None:
        """With every budget, or without the widest ones when those don't start; None when widths can't be switched."""
        held = list(self._budgets)
        while len(held) > 1:
            life = ExitStack()
            try:
                found = self._start_with(held, life)
            except EngineStartError as error:
                life.close()
                self._ctx.log(f"no server with the widths {', '.join(map(str, held))}: {error}")
                if WIDTHS_ENV in str(error):  # it did not lack memory: these widths can't be held together
                    return None
                held.pop()
            except BaseException:
                life.close()
                raise
            else:
                if found is None:
                    life.close()
                return found
        return None

    def _start_with(self, held: Sequence[int], life: ExitStack) -> _Shared | None:
        token = secrets.token_hex(16)
        self._ctx.host.masker.add(token)
        widths = ",".join([CHAIN, *map(str, held)])
        plain = tree_engine(self._ctx, "bench", held[-1], {WIDTHS_ENV: widths})
        engine = replace(plain, secrets={TOKEN_ENV: token})
        url = life.enter_context(side_engine(self._ctx, engine))
        switch = WidthSwitch(url, token)
        state = switch.state()
        if state is None or not {str(budget) for budget in held} <= set(state.get("widths", [])):
            self._ctx.log("this release's plugin can't switch widths while it runs; each budget gets a server")
            return None
        self._ctx.log(f"one server holds the widths {', '.join(state['widths'])}")
        return _Shared(engine, url, switch, tuple(held), life)

    def _stop(self) -> None:
        shared, self._shared = self._shared, None
        if shared is None:
            return
        with contextlib.suppress(OrchestrateError):
            self._ctx.artifact("widths.json", json.dumps(shared.switch.state(), indent=1))
        shared.life.close()
