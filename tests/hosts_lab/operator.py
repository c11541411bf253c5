"""An operator's process for fault injection: deploys a release to one host with the product's own parts.

`python -m tests.hosts_lab.operator FILE`, FILE a JSON object {host, state_dir, wheel, deadline_s, hold, then_back,
stand_in}. Every point of the way is printed as `POINT name`; at the point named by `hold` it waits for a line on stdin, so that a fault can
be injected there. Exit codes are those of the program: 0 done, 1 unchanged, 3 unreachable, 4 rolled back, 5 unverified.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ExitCode, HostError, OrchestrateError
from orchestrator.hosts import lock
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release import build
from orchestrator.release.manifest import Manifest
from orchestrator.release.settle import settle
from orchestrator.remote.bridge import Bridge
from orchestrator.remote.services import ServiceUnit
from tasks.launch import on_port
from tests.hosts_lab import scene

TOKENS = 32


class RolledBack(OrchestrateError):
    exit_code = ExitCode.ROLLED_BACK


@dataclass
class Operator:
    wish: dict[str, Any]
    changed: bool = False

    def at(self, point: str) -> None:
        print(f"POINT {point}", flush=True)
        if self.wish["hold"] == point:
            sys.stdin.readline()

    def run(self) -> None:
        config = HostConfig.model_validate(self.wish["host"])
        with (
            open_session(config, Path(self.wish["state_dir"])) as session,
            lock.held(session.releases, "matrix", ttl_s=30, beat_s=5),
        ):
            self.deploy(session)

    def deploy(self, session: HostSession) -> None:
        activation = session.activation()
        if session.releases.current() is not None:
            settle(activation, log=print, patience_s=120)
        source = scene.found(session)
        release = build.build_release(session.releases, scene.plan(source, Path(self.wish["wheel"])), self.progress)
        definition = session.services.definition(session.unit)
        if definition is not None and definition.release == release.id:
            print("the release is live already", flush=True)
            self.prove(session, release)
        else:
            points = {"armed": "armed", "bridged": "bridged", "defined": "defined", "started": "switched"}
            self.switch(session, release, source, points)
        session.releases.mark_known_good(release.id, {"tokens": TOKENS}, "matrix")
        if self.wish["then_back"]:
            self.switch(session, source, release, {"stopped": "rolling-back"})

    def switch(self, session: HostSession, target: Manifest, previous: Manifest, points: dict[str, str]) -> None:
        """Switch, prove, confirm; whatever fails after the switch began ends with the previous release, proven."""
        activation = session.activation()
        deadline = float(self.wish["deadline_s"])
        forward = target.kind != "found"
        try:
            bridge = self.stand_in(session, target) if forward and self.wish["stand_in"] else None
            switched = activation.switch(
                target,
                previous,
                deadline_s=deadline,
                before_stop=bridge.on if bridge else None,
                log=lambda line: print(line, flush=True),
                at=lambda point: self.at(points[point]) if point in points else None,
            )
            if forward:
                self.at("verifying")
            self.prove(session, target, bridge.direct if bridge else None)
            if bridge:
                bridge.lift()
                self.at("lifted")
            if forward:
                self.at("disarming")
            if not activation.confirm(switched.token):
                raise OrchestrateError("the host had already gone back by itself")
            if bridge:
                bridge.end(drain_s=5)
                session.services.remove(bridge.unit)
        except OrchestrateError as error:
            self.back(session, previous, error)

    def stand_in(self, session: HostSession, target: Manifest) -> Bridge:
        """An engine of the release that answers on the side port."""
        bridge = session.bridge
        if bridge is None or bridge.why_not():
            raise OrchestrateError(f"this host cannot redirect: {bridge and bridge.why_not()}")
        session.services.remove(bridge.unit)
        launch = on_port(target.launch, bridge.side)
        unit = ServiceUnit(bridge.unit, launch.argv, launch.env, restart="no", after_stop=bridge.end_with_unit)
        session.services.install(unit)
        session.services.start(bridge.unit)
        with session.http(bridge.side) as url:
            self.answer(url)
        return bridge

    def back(self, session: HostSession, previous: Manifest, error: OrchestrateError) -> None:
        print(f"failed: {error}", flush=True)
        now = settle(session.activation(), log=print, patience_s=120)
        if now.serving != previous.id:
            raise error
        self.prove(session, previous)
        raise RolledBack(f"rolled back to {previous.id} and proven: {error}") from error

    def progress(self, text: str, _done: float | None, _total: float | None) -> None:
        if text.startswith("hashing"):
            self.at("before-clone")
        elif text.startswith("installing"):
            self.at("after-clone")
            self.at("upload")

    def answer(self, url: str) -> dict[str, Any]:
        end = time.monotonic() + 30
        while True:
            try:
                return fetch(f"{url}/whoami")
            except (OSError, ValueError):
                if time.monotonic() > end:
                    raise OrchestrateError("the service does not answer") from None
                time.sleep(0.2)

    def prove(self, session: HostSession, release: Manifest, port: int | None = None) -> None:
        """The right release answers, twice from one process, with the same tokens as before."""
        prefix = release.environment.prefix if release.kind == "found" else session.releases.layout.venv(release.id)
        pid = session.services.status(session.unit).main_pid
        with session.http(port) as url:
            said = self.answer(url)
            texts = [generate(url), generate(url)]
        if said["prefix"] != prefix:
            raise OrchestrateError(f"{said['prefix']} answers, not {prefix}")
        if len(set(texts)) != 1 or len(texts[0].split()) != TOKENS:
            raise OrchestrateError("two generations differ or are short")
        if session.services.status(session.unit).main_pid != pid or not pid:
            raise OrchestrateError("the service was restarted while it was proven")


def fetch(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return dict(json.load(answer))


def generate(url: str) -> str:
    body = json.dumps({"prompt": "a fault", "max_tokens": TOKENS}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(json.load(answer)["choices"][0]["text"])
    except (OSError, ValueError) as error:
        raise OrchestrateError(f"a generation failed ({error})") from error


def main() -> int:
    operator = Operator(json.loads(Path(sys.argv[1]).read_text()))
    try:
        operator.run()
    except HostError as error:
        print(f"lost: {error}", flush=True)
        return int(error.exit_code)
    except OrchestrateError as error:
        print(f"error: {error}", flush=True)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
