"""What a host serves now, asked from the host and the engine itself."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.rotation import in_rotation
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.openai.spec_metrics import SpecCounts, names_for
from orchestrator.release.launch import Launch


def serving_now(session: HostSession) -> dict[str, Any]:
    """{host, service, pid, release, known_good, algorithm, nodes, accept_length, tok_s, drift[], deadman, replicas[]}.

    With several replicas the figures are the first one's, and `replicas` says for each {unit, service, release, routed, deadman}.

    accept_length and tok_s come from one short greedy request, so they say what the engine does at this moment.
    """
    definition = session.services.definition(session.unit)
    status = session.services.status(session.unit)
    good = session.releases.known_good()
    found: dict[str, Any] = {
        "host": session.name,
        "service": f"{session.unit} is {status.active}",
        "pid": status.main_pid or None,
        "release": session.releases.current(),
        "known_good": [one.release for one in good],
        "algorithm": None, "nodes": None, "accept_length": None, "tok_s": None,
        "drift": [], "replicas": [],
        "deadman": session.deadman.status().state,
    }  # fmt: skip
    if definition is not None:
        found["drift"] = drift_of(session, Launch.of(definition), definition.release)
    if status.running:
        found |= _engine(session)
    if session.config.router.enabled:
        found["replicas"] = [_replica(replica) for replica in session.replicas()]
    return found


def _replica(replica: HostSession) -> dict[str, Any]:
    try:
        routed = in_rotation(replica)
    except OrchestrateError:
        routed = False
    active = replica.services.status(replica.unit).active
    deadman = replica.deadman.status().state
    release = replica.releases.current()
    return {"unit": replica.unit, "service": active, "release": release, "routed": routed, "deadman": deadman}


def drift_of(session: HostSession, launch: Launch, release: str) -> list[str]:
    """How the unit differs from the release that should be live, one sentence each."""
    current = session.releases.current()
    if current is None:
        return []
    manifest = session.releases.read(current)
    drift = []
    if manifest.kind != "found" and release != current:
        drift.append(f"the unit does not serve {current}, which is recorded as current")
    elif launch.argv != manifest.launch.argv:
        drift.append(f"the unit's command differs from that of {current}")
    return drift


def _engine(session: HostSession) -> dict[str, Any]:
    try:
        with session.http() as url, Client(url, timeout_s=60) as client:
            info = client.server_info()
            done = client.generate("def main():", 32)
    except OrchestrateError as error:
        return {"drift": [f"the service does not answer ({error})"]}
    algorithm = str(info.get("speculative_algorithm") or "none")
    width = info.get("speculative_num_draft_tokens")
    counts = SpecCounts.of_request(done.meta_info, len(done.output_ids), names_for(str(info.get("version") or "")))
    seconds = done.ended_at_s - done.sent_at_s
    return {
        "algorithm": algorithm,
        "nodes": width - 1 if algorithm == "DDTREE" and isinstance(width, int) else None,
        "accept_length": round(counts.tokens_per_step, 3) if counts.tokens_per_step else None,
        "tok_s": round(len(done.output_ids) / seconds, 1) if seconds > 0 and done.output_ids else None,
    }
