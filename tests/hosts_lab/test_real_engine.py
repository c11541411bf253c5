"""The whole way once with the real engine: linear DFLASH under systemd, DDTREE deployed, greedy tokens equal, and back."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.hosts.session import HostSession
from orchestrator.release import build
from orchestrator.release.found import find_service
from orchestrator.release.launch import with_flags
from orchestrator.release.wheels import build_plugin_wheel
from tests.hosts_lab import engine
from tests.hosts_lab.conftest import OpenSession
from tests.hosts_lab.lab import LabHost

PATIENCE_S = 300.0
NODES = 15


@pytest.fixture
def engine_host() -> Iterator[LabHost]:
    machine = engine.host("engine")
    try:
        yield machine
    finally:
        engine.remove(machine)


def ask(session: HostSession, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET or POST on the live service, as soon as it answers."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with session.http(engine.PORT) as url:
                data = json.dumps(body).encode() if body is not None else None
                request = urllib.request.Request(f"{url}{path}", data, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return dict(json.load(answer))
        except OSError:
            if time.monotonic() > end:
                raise AssertionError("\n".join(session.services.logs("sglang.service", 20))) from None
            time.sleep(1)


def generate(session: HostSession) -> dict[str, Any]:
    wish = {
        "text": "def main():\n    ",
        "sampling_params": {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True},
    }
    return ask(session, "/generate", wish)


def test_ddtree_takes_over_from_linear_dflash_and_goes_back(engine_host: LabHost, connect: OpenSession) -> None:
    with connect(engine_host) as session:
        linear = generate(session)
        source = find_service(session.releases, session.services, session.unit, engine.PORT)
        assert (source.environment.prefix, source.environment.package_version) == (engine.VENV, "0.5.20")
        digest = session.releases.tree_digest(engine.VENV)
        flags = {"--speculative-algorithm": "DDTREE", "--speculative-num-draft-tokens": str(NODES + 1)}
        launch = source.launch.model_copy(update={"argv": with_flags(source.launch.argv, flags)})
        plan = build.BuildPlan(source, launch, wheel=build_plugin_wheel(session.wheel_dir))
        release = build.build_release(session.releases, plan, lambda *_: None)
        assert release.clone_mode == "link"
        assert len(release.overrides) > 5
        activation = session.activation()
        switched = activation.switch(release, source, deadline_s=PATIENCE_S)
        tree = generate(session)
        assert ask(session, "/get_server_info")["speculative_algorithm"] == "DDTREE"
        assert tree["text"] == linear["text"]
        assert tree["meta_info"]["spec_verify_ct"] > 0
        assert activation.confirm(switched.token)
        back = activation.switch(source, release, deadline_s=PATIENCE_S)
        assert generate(session)["text"] == linear["text"]
        assert ask(session, "/get_server_info")["speculative_algorithm"] == "DFLASH"
        assert activation.confirm(back.token)
        assert session.releases.tree_digest(engine.VENV) == digest
