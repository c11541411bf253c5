"""Back to a release that was known-good, and the proof that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.manifest import Manifest
from orchestrator.release.settle import settle
from tasks.launch import algorithm_of
from tasks.samples import RECORDED_PROMPTS, Sample, compare, default_prompts, take_samples

Log = Callable[[str], None]


def restore(session: HostSession, target: Manifest, *, log: Log) -> None:
    """Make `target` the live release; returns when its process runs. Nothing happens when it is live already."""
    activation = session.activation()
    settle(activation, patience_s=session.config.service.start_timeout_s, log=log)
    definition = session.services.definition(session.unit)
    override = activation.override_for(target)
    wanted = target.launch.argv
    live = definition is not None and definition.argv == wanted and definition.overridden == (override is not None)
    if live and session.services.status(session.unit).running:
        log(f"{target.id} is live already")
    else:
        session.services.stop(session.unit)
        activation.apply_definition(target)
        session.services.start(session.unit)
        log(f"{session.unit} started with {target.id}")
    if session.releases.current() != target.id:
        session.releases.point_current(target.id)


def rollback_target(session: HostSession, wanted: str | None) -> Manifest:
    """The release to go back to: the named one, else the newest known-good linear one. It must be known-good."""
    good = [known.release for known in session.releases.known_good()]
    if wanted is not None:
        if wanted not in session.releases.ids():
            raise UsageError(f"Host {session.name!r} has no release {wanted}; `orchestrate releases` lists them.")
        if wanted not in good:
            raise UsageError(f"Release {wanted} was never proven on {session.name!r}; choose one of {', '.join(good)}.")
        return session.releases.read(wanted)
    for release in good:
        manifest = session.releases.read(release)
        if algorithm_of(manifest.launch.argv) != "DDTREE":
            return manifest
    raise OrchestrateError(
        f"Host {session.name!r} has no known-good linear release to go back to; run deploy-ddtree, which records one."
    )


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
