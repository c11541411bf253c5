"""What tests of releases do with a host: ask its service, wait, say what to build."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.hosts.session import HostSession
from orchestrator.release import build
from orchestrator.release.found import find_service
from orchestrator.release.launch import with_flags
from orchestrator.release.manifest import Manifest


def quiet(_text: str, _done: float | None, _total: float | None) -> None:
    """A progress callback that shows nothing."""


def ask(session: HostSession) -> dict[str, Any]:
    """What the service says of itself, as soon as it answers."""
    end = time.monotonic() + 20
    with session.http() as url:
        while True:
            try:
                with urllib.request.urlopen(str(url), timeout=5) as answer:
                    return dict(json.load(answer))
            except OSError:
                assert time.monotonic() < end, "the service did not answer in time"
                time.sleep(0.05)


def found(session: HostSession) -> Manifest:
    return find_service(session.releases, session.services, session.unit, session.config.service.port)


def plan_for(session: HostSession, source: Manifest, wheel: Path | None) -> build.BuildPlan:
    argv = with_flags(source.launch.argv, {"--algorithm": "TREE"})
    launch = source.launch.model_copy(update={"argv": argv})
    return build.BuildPlan(source, launch, wheel=wheel, plugin_module="test_plugin")


def wait_until(condition: Callable[[], bool], patience_s: float = 30.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.05)
