"""The smoke suite: named checks of an OpenAI-compatible server, each saying what it proves.

A capability that a server does not offer is reported as such (`ok` is None): neither passed nor failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.openai import smoke_api, smoke_robust
from orchestrator.openai.checks import CheckFailed, NamedCheck, NotOffered, Probe
from orchestrator.openai.client import Client
from orchestrator.openai.endpoint import Endpoint, endpoint_of
from orchestrator.openai.records import UNEXPECTED


@dataclass(frozen=True)
class CheckResult:
    """ok: True passed, False failed, None not offered (then `skipped_reason` says why)."""

    name: str
    ok: bool | None
    detail: str
    proves: str
    duration_s: float
    skipped_reason: str = ""

    @property
    def outcome(self) -> str:
        return {True: "passed", False: "failed", None: "not offered"}[self.ok]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"outcome": self.outcome}


def all_checks() -> list[NamedCheck]:
    """Every check in the order in which they run."""
    return [*smoke_api.CHECKS, *smoke_robust.CHECKS]


def run_smoke(
    server: Endpoint | str,
    model: str | None = None,
    quick: bool = False,
    on_check: Callable[[CheckResult], None] = lambda result: None,
    *,
    reference: Callable[[str, int], Sequence[int]] | None = None,
    lossless_prompts: Sequence[str] = ("The sea is", "def add(a, b):", "Once upon a time", "1, 2, 3,"),
    only: Iterable[str] | None = None,
    timeout_s: float = 120.0,
) -> list[CheckResult]:
    """Run the suite against a server; never raises for what the server does, not even when nothing answers.

    quick leaves out the checks that take long. reference: prompt, max_tokens -> greedy ids of another service
    (see `reference_of`), for the losslessness sample. only: names of the checks to run.
    """
    wanted = None if only is None else set(only)
    results = []
    with Client(server, timeout_s) as client:
        probe = Probe(
            client, model or _first_model(client), endpoint_of(server).api_key, quick, reference, lossless_prompts
        )
        for check in all_checks():
            if (quick and not check.quick) or (wanted is not None and check.name not in wanted):
                continue
            results.append(_run_one(check, probe))
            on_check(results[-1])
    return results


def _first_model(client: Client) -> str:
    try:
        return (client.models() or ["default"])[0]
    except OrchestrateError:
        return "default"


def _run_one(check: NamedCheck, probe: Probe) -> CheckResult:
    start = time.perf_counter()
    ok: bool | None = True
    skipped = ""
    try:
        detail = check.run(probe)
    except NotOffered as exc:
        ok, detail, skipped = None, str(exc), str(exc)
    except (CheckFailed, OrchestrateError) as exc:
        ok, detail = False, str(exc)
    except UNEXPECTED as exc:
        ok, detail = False, f"the answer has an unexpected form ({type(exc).__name__}: {exc})"
    return CheckResult(check.name, ok, detail, check.proves, time.perf_counter() - start, skipped)


def smoke_passed(results: Sequence[CheckResult]) -> bool:
    """At least one check passed and none failed."""
    return any(r.ok for r in results) and not any(r.ok is False for r in results)


def reference_of(server: Endpoint | str) -> Callable[[str, int], Sequence[int]]:
    """Greedy ids from another SGLang server, for `run_smoke(reference=…)`."""

    def ids(prompt: str, max_tokens: int) -> Sequence[int]:
        with Client(server) as client:
            return client.generate(prompt, max_tokens).output_ids

    return ids
