"""Back to a release that was known-good, and the proof that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.launch import flag_value
from orchestrator.release.manifest import Manifest
from orchestrator.release.settle import settle
from orchestrator.remote.services import Definition
from tasks.launch import WIDTH, algorithm_of
from tasks.samples import RECORDED_PROMPTS, Sample, compare, default_prompts, take_samples

Log = Callable[[str], None]


@dataclass(frozen=True)
class Meanwhile:
    """What is done on the way back: while the service still runs, while nothing does, and before the host is told that
    its guard is needed no more; longer_s: the seconds that this adds."""

    before_stop: Callable[[], None] = lambda: None
    before_start: Callable[[], None] = lambda: None
    before_confirm: Callable[[], None] = lambda: None
    longer_s: float = 0.0


def restore(session: HostSession, target: Manifest, *, log: Log, meanwhile: Meanwhile | None = None) -> None:
    """Make `target` the live release; returns when its process runs. Nothing happens when it is live already."""
    also = meanwhile or Meanwhile()
    activation = session.activation()
    settle(activation, patience_s=session.config.service.start_timeout_s, log=log)
    if is_live(session, target):
        log(f"{target.id} is live already")
    else:
        activation.bring_back(
            target,
            before_stop=also.before_stop,
            before_start=also.before_start,
            before_confirm=also.before_confirm,
            longer_s=also.longer_s,
            log=log,
        )
        log(f"{session.unit} started with {target.id}")
    if session.releases.current() != target.id:
        session.releases.point_current(target.id)


def defines(definition: Definition | None, target: Manifest) -> bool:
    """Whether the unit would start exactly this release: releases of one command may differ in their environment."""
    if definition is None or definition.argv != target.launch.argv:
        return False
    return not definition.overridden if target.kind == "found" else definition.release == target.id


def is_live(session: HostSession, target: Manifest) -> bool:
    """Whether the unit runs with this release and exactly this command."""
    return defines(session.services.definition(session.unit), target) and session.services.status(session.unit).running


def rollback_target(session: HostSession, wanted: str | None) -> Manifest:
    """The release to go back to: the named one, else the newest known-good linear one. It must be known-good.

    A name of another replica's release stands for the one that is like it on this replica's unit.
    """
    good = [session.releases.read(known.release) for known in session.releases.known_good()]
    if wanted is not None:
        if wanted not in session.releases.ids():
            raise UsageError(f"Host {session.name!r} has no release {wanted}; `orchestrate releases` lists them.")
        if wanted not in {manifest.id for manifest in good}:
            known = ", ".join(manifest.id for manifest in good)
            raise UsageError(f"Release {wanted} was never proven on {session.name!r}; choose one of {known}.")
        return _counterpart(session, session.releases.read(wanted), good)
    for manifest in good:
        if manifest.unit == session.unit and algorithm_of(manifest.launch.argv) != "DDTREE":
            return manifest
    raise OrchestrateError(
        f"Host {session.name!r} has no known-good linear release to go back to; run deploy-ddtree, which records one."
    )


def _counterpart(session: HostSession, wanted: Manifest, good: Sequence[Manifest]) -> Manifest:
    if wanted.unit == session.unit:
        return wanted
    for manifest in good:
        like = (manifest.kind, manifest.venv_release, _shape(manifest)) == (
            wanted.kind, wanted.venv_release, _shape(wanted)
        )  # fmt: skip
        if manifest.unit == session.unit and like:
            return manifest
    raise OrchestrateError(
        f"{session.unit} on {session.name!r} has no known-good release like {wanted.id} of {wanted.unit}; go back to "
        "the linear service instead (without --to)."
    )


def _shape(manifest: Manifest) -> tuple[str, str | None]:
    return algorithm_of(manifest.launch.argv), flag_value(manifest.launch.argv, WIDTH)


def prove(session: HostSession, target: Manifest, expected: Sequence[Sample], max_tokens: int) -> dict[str, Any]:
    """Figures that prove that `target` serves: same pid twice, its algorithm, generation, and the recorded tokens."""
    before = session.services.status(session.unit).main_pid
    with session.http() as url, Client(url) as client:
        if not client.ready():
            raise OrchestrateError(f"The service on {session.name!r} does not answer a generation.")
        said = str(client.server_info().get("speculative_algorithm") or "NONE").upper()
        wanted = algorithm_of(target.launch.argv)
        if said != wanted:
            raise OrchestrateError(f"The service on {session.name!r} says that it runs {said}, not {wanted}.")
        ids = {sample.prompt_id for sample in expected}
        prompts = [prompt for prompt in default_prompts(RECORDED_PROMPTS) if prompt.id in ids]
        got = take_samples(url, prompts, max_tokens) if prompts else []
    known = [sample for sample in expected if sample.prompt_id in {prompt.id for prompt in prompts}]
    differences = compare(known, got)
    if differences:
        raise OrchestrateError(f"The restored service does not give the recorded tokens: {differences[0]}.")
    after = session.services.status(session.unit).main_pid
    if before != after or not after:
        raise OrchestrateError(
            f"The service on {session.name!r} was restarted while it was proven ({before}, {after})."
        )
    return {"release": target.id, "algorithm": said, "pid": after, "compared": len(known)}
