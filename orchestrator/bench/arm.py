"""One side of a comparison: a running server, and the measurement of one row on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from orchestrator.bench.load import Level, Target, run_load
from orchestrator.bench.prompts import WARM_UP, Prompt, native_prompt, plain_text
from orchestrator.bench.rows import HostSample, RequestFacts, Row
from orchestrator.errors import HostError
from orchestrator.openai.client import Client, engine_settings, graphs_on, server_identity
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.metrics_text import read_metrics
from orchestrator.openai.records import Api
from orchestrator.openai.spec_metrics import SpecNames, chain_length_between, names_for, stage_ms_between

DELAY_LIMIT_S = 0.005
CPU_DELAY_LIMIT_S = 0.1


@dataclass(frozen=True)
class Arm:
    """A server under test.

    switch: called before each block on this arm (run-time change of the tree's width). identity: a text that
    changes when the server process does; by default taken from the server's info. sample: reads the
    accelerator. flush: empty the prefix cache before each row (set False for a service that others use).
    speculative: rows must show speculative steps (False for a plain-decoding control, and for a server that can't
    tell). api: the interface that is measured; with OpenAI's completions prompts go as text, and texts are compared.
    """

    name: str
    server: Endpoint | str
    budget: int = 0
    model: str = "default"
    switch: Callable[[], None] | None = None
    identity: Callable[[], str] | None = None
    sample: Callable[[], HostSample | None] | None = None
    flush: bool = True
    speculative: bool = True
    api: Api = Api.NATIVE


ArmFactory = Callable[[], AbstractContextManager[Arm]]


@dataclass(frozen=True)
class RowSettings:
    """What every row of a sweep has in common. fingerprint: of the engines of both arms."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 1
    max_live_load: float = 0.0
    client_delay_limit_s: float | None = None
    set_hash: str = ""
    fingerprint: str = ""


class OpenArm:
    """An arm while its server runs; enter it once, measure many rows."""

    def __init__(self, factory: ArmFactory) -> None:
        self._context = factory()

    def __enter__(self) -> OpenArm:
        self.arm = self._context.__enter__()
        self._client = Client(self.arm.server)
        info = self._client.server_info()
        self.graphs = graphs_on(info)
        self.engine = engine_settings(info)
        self._on_cpu = str(info.get("device")) == "cpu"
        self.version = str(info.get("version") or "")
        self._names: SpecNames = names_for(self.version)
        self.outputs: list[list[int]] = []  # of the row measured last, in the order of its requests
        self._prompts: dict[str, str | list[int]] = {}
        self._warmed = False
        self._opened_as = self.identity()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._client.__exit__()
        return self._context.__exit__(kind, exc, trace)

    def native(self, prompt: Prompt) -> tuple[str, str | list[int]]:
        """Id and native form of a prompt, asked from the server once."""
        if self.arm.api is not Api.NATIVE:
            return prompt.id, list(prompt.input_ids) if prompt.input_ids is not None else plain_text(prompt)
        key = prompt.content_hash
        if key not in self._prompts:
            self._prompts[key] = native_prompt(self._client, prompt, self.arm.model)
        return prompt.id, self._prompts[key]

    def identity(self) -> str:
        return self.arm.identity() if self.arm.identity else server_identity(self._client.server_info())

    def require_same(self) -> None:
        """HostError when the server that was opened answers no more, or another process serves in its place."""
        self._client.server_info()
        now = self.identity()
        if now != self._opened_as:
            raise HostError(
                f"The server of the arm {self.arm.name!r} was restarted during the sweep (it was {self._opened_as} and is "
                f"{now}); run again once it stays."
            )

    def greedy_ids(self, prompt: Prompt, max_tokens: int) -> list[int]:
        """Greedy output ids of one prompt; [] when the request failed."""
        self._switch()
        return self._client.generate(self.native(prompt)[1], max_tokens).output_ids

    def gap(self, prompt: Prompt, prefix: Sequence[int], wanted: int, got: int) -> float | None:
        """By how many nats this server prefers one next token to another; None when it does not tell."""
        return self._client.preference(self.native(prompt)[1], prefix, wanted, got, self.arm.model)

    def warm_up(self, settings: RowSettings, concurrency: int, warm_up: Sequence[Prompt] = WARM_UP) -> None:
        """Once per arm and server start, with prompts that are never measured and never above the load asked."""
        if not self._warmed:
            self._load(settings, warm_up, concurrency)
            self._warmed = True

    def _switch(self) -> None:
        if self.arm.switch:
            self.arm.switch()

    def _load(self, settings: RowSettings, prompts: Sequence[Prompt], concurrency: int) -> Any:
        target = Target(
            self.arm.server,
            api=self.arm.api,
            model=self.arm.model,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=settings.seed if settings.temperature > 0 else None,
        )
        natives = [self.native(p) for p in prompts]
        return run_load(target, natives, len(natives), Level(concurrency=concurrency))

    def measure(
        self,
        settings: RowSettings,
        prompts: Sequence[Prompt],
        *,
        arm: str,
        budget: int,
        concurrency: int,
        pair: int,
        block: int,
        warm_up: Sequence[Prompt] = WARM_UP,
    ) -> Row:
        """Measure one prompt group; the row is not judged yet."""
        self._switch()
        self.warm_up(settings, concurrency, warm_up)
        flushed = self._client.flush_cache() if self.arm.flush else None
        sample = self.arm.sample or (lambda: None)
        text_before, host_before, identity_before = self._client.metrics_text(), sample(), self.identity()
        result = self._load(settings, prompts, concurrency)
        host_after, identity_after, text_after = sample(), self.identity(), self._client.metrics_text()
        self.outputs = [done.output_ids for done in result.completions]
        before, after = (None if text is None else read_metrics(text) for text in (text_before, text_after))
        return Row(
            arm=arm,
            budget=budget,
            concurrency=concurrency,
            pair=pair,
            block=block,
            requests=tuple(RequestFacts.of(done, settings.max_tokens, self._names) for done in result.completions),
            wall_s=result.summary.wall_s,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            set_hash=settings.set_hash,
            fingerprint=settings.fingerprint,
            warm_up_hashes=tuple(p.content_hash for p in warm_up),
            prompt_hashes=tuple(p.own_hash for p in prompts),
            identity_before=identity_before,
            identity_after=identity_after,
            speculative=self.arm.speculative,
            graphs=self.graphs,
            engine=self.engine,
            foreign_requests=self._foreign(before, after, len(result.completions)),
            live_load=self._live_load(before),
            max_live_load=settings.max_live_load,
            cache_flushed=flushed,
            client_delay_p99_s=result.client_delay_p99_s,
            client_delay_limit_s=self._delay_limit(settings),
            host_before=host_before,
            host_after=host_after,
            chain_accept_length=chain_length_between(before or {}, after or {}, self._names),
            stage_ms=stage_ms_between(text_before or "", text_after or "", self._names),
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _delay_limit(self, settings: RowSettings) -> float:
        """What was asked, or a default: a CPU engine takes the client's cores, which is its cost, not the client's."""
        if settings.client_delay_limit_s is not None:
            return settings.client_delay_limit_s
        return CPU_DELAY_LIMIT_S if self._on_cpu else DELAY_LIMIT_S

    def _foreign(self, before: dict[str, float] | None, after: dict[str, float] | None, own: int) -> int | None:
        """Requests finished for others; None when the server shows no counter."""
        counter = self._names.counter_requests
        if before is None or after is None or counter not in after:
            return None
        return max(0, round(after[counter] - before.get(counter, 0.0)) - own)

    def _live_load(self, metrics: dict[str, float] | None) -> float | None:
        """Requests running or queued before the row; None when the server does not say."""
        if metrics is None or self._names.gauge_running not in metrics:
            return None
        return metrics[self._names.gauge_running] + metrics.get(self._names.gauge_queued, 0.0)
