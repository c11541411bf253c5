"""Greedy samples of an engine: token ids, verify steps and speed for a few prompts, and their comparison."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.bench.prompts import Prompt, load_prompt_sets, native_prompt, shipped_sets
from orchestrator.errors import OrchestrateError
from orchestrator.openai.client import Client
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.spec_metrics import SpecCounts, accepted_histogram, names_for

SAMPLE_PROMPTS = 8  # compared token by token with every engine
RECORDED_PROMPTS = 24  # recorded from the linear service; the benchmark takes those that do not loop


@dataclass(frozen=True)
class Sample:
    """One greedy request. `steps` counts verify passes; `seconds` is the whole request.

    `histogram[n]` is how many passes confirmed n drafts; empty where the engine does not say.
    """

    prompt_id: str
    ids: tuple[int, ...]
    steps: int
    seconds: float
    histogram: tuple[int, ...] = ()

    @property
    def tokens_per_step(self) -> float:
        return (len(self.ids) - 1) / self.steps if self.steps else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sample_from_json(data: Mapping[str, Any]) -> Sample:
    histogram = tuple(data.get("histogram", ()))
    return Sample(str(data["prompt_id"]), tuple(data["ids"]), int(data["steps"]), float(data["seconds"]), histogram)


def default_prompts(count: int) -> list[Prompt]:
    """The first prompts of the project's sets, every category in turn."""
    found = load_prompt_sets(shipped_sets())[:count]
    if not found:
        raise OrchestrateError("engine/models/prompts holds no prompt set; check out the repository whole.")
    return found


def take_samples(
    url: Endpoint, prompts: Sequence[Prompt], max_tokens: int, rid_prefix: str | None = None
) -> list[Sample]:
    """Greedy outputs of a running engine, one request at a time; an error names the prompt that failed.

    With rid_prefix the engine knows each request as prefix and prompt id, which is how its trace names it.
    """
    samples = []
    with Client(url) as client:
        names = names_for(str(client.server_info().get("version") or ""))
        model = (client.models() or ["default"])[0]
        for prompt in prompts:
            native = native_prompt(client, prompt, model)
            started = time.monotonic()
            done = client.generate(native, max_tokens, rid=None if rid_prefix is None else rid_prefix + prompt.id)
            seconds = time.monotonic() - started
            if not done.ok or not done.output_ids:
                raise OrchestrateError(
                    f"The engine at {url} failed on prompt {prompt.id!r} (status {done.status}: {done.error or 'no ids'})."
                )
            counts = SpecCounts.of_request(done.meta_info, len(done.output_ids), names)
            ids, histogram = tuple(done.output_ids[:max_tokens]), accepted_histogram(done.meta_info, names)
            samples.append(Sample(prompt.id, ids, counts.verify_steps, seconds, histogram))
    return samples


def tokens_per_step(samples: Sequence[Sample]) -> float:
    """Tokens per verify step over all samples together (the first token of each comes from the prefill)."""
    steps = sum(s.steps for s in samples)
    return sum(len(s.ids) - 1 for s in samples) / steps if steps else 0.0


def speed(samples: Sequence[Sample]) -> float:
    """Tokens per second over all samples together, prefill included."""
    seconds = sum(s.seconds for s in samples)
    return sum(len(s.ids) for s in samples) / seconds if seconds else 0.0


@dataclass(frozen=True)
class Difference:
    """The first place at which two outputs of one prompt differ."""

    prompt_id: str
    position: int
    expected: int | None
    got: int | None

    def __str__(self) -> str:
        return f"prompt {self.prompt_id!r} at token {self.position}: {self.got} instead of {self.expected}"


def compare(expected: Sequence[Sample], got: Sequence[Sample]) -> list[Difference]:
    """First difference of each prompt; a prompt that one side lacks differs at token 0."""
    by_id = {sample.prompt_id: sample for sample in got}
    return [
        difference
        for sample in expected
        if (difference := _first_difference(sample, by_id.get(sample.prompt_id))) is not None
    ]


def _first_difference(expected: Sample, got: Sample | None) -> Difference | None:
    if got is None:
        return Difference(expected.prompt_id, 0, expected.ids[0] if expected.ids else None, None)
    for position in range(max(len(expected.ids), len(got.ids))):
        want = expected.ids[position] if position < len(expected.ids) else None
        have = got.ids[position] if position < len(got.ids) else None
        if want != have:
            return Difference(expected.prompt_id, position, want, have)
    return None
