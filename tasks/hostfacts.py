"""Facts about a host that summaries and the TUI show: its releases, its dead man's switch, its drift."""

from __future__ import annotations

import time
from datetime import datetime

from orchestrator.graph.model import TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.release.drift import drift_of
from orchestrator.release.found import original_of
from orchestrator.release.launch import flag_value
from orchestrator.release.manifest import Manifest
from tasks.launch import WIDTH, algorithm_of


def keep_releases(ctx: TaskContext) -> None:
    """A fact `release` for every release of the host: {id, algorithm, nodes, state, current, known_good, unit, since}."""
    store = ctx.host.releases
    currents = store.currents()
    good = {one.release: one for one in store.known_good()}
    for name in store.ids():
        manifest = store.read(name)
        proof = good.get(name)
        algorithm = algorithm_of(manifest.launch.argv)
        since = datetime.fromisoformat(proof.verified_at if proof else manifest.created_at).timestamp()
        state = "live" if name in currents else "known-good" if proof else "built"
        ctx.fact("release", name, {
            "id": name, "algorithm": algorithm, "nodes": nodes_of(manifest), "state": state,
            "current": name in currents, "known_good": proof is not None, "unit": manifest.unit, "since": since,
        })  # fmt: skip


def nodes_of(manifest: Manifest) -> int | None:
    """B, the tree nodes that a release is started with; None without a tree."""
    width = flag_value(manifest.launch.argv, WIDTH)
    return int(width) - 1 if algorithm_of(manifest.launch.argv) == "DDTREE" and width and width.isdigit() else None


def keep_deadman(ctx: TaskContext, session: HostSession, previous: Manifest, seconds: float | None) -> None:
    """A fact `deadman`: armed with `seconds` from now on, or (None) not armed any more."""
    armed = {"seconds": seconds, "fires_at": time.time() + seconds} if seconds is not None else {}
    key = session.name if session.number == 0 else f"{session.name}/{session.number}"
    ctx.fact("deadman", key, {"armed": seconds is not None, "release": previous.id, "unit": session.unit, **armed})


def keep_drift(ctx: TaskContext) -> list[str]:
    """A fact `drift` with every difference between what was recorded and what each replica has; returns them in words."""
    items = []
    for replica in ctx.host.replicas():
        current = replica.releases.current()
        if current is None:
            continue
        live = replica.releases.read(current)
        found = drift_of(replica.activation(), original_of(replica.releases, live), live)
        items += [{"what": one.what, "detail": one.detail, "diff": one.diff, "unit": replica.unit} for one in found]
    ctx.fact("drift", ctx.host.name, {"items": items})
    return [f"{item['what']}: {item['detail']}" for item in items]
