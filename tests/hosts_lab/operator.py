"""An operator's process for fault injection: deploys a release to one host with the product's own parts.

`python -m tests.hosts_lab.operator FILE`, FILE a JSON object {host, state_dir, wheel, deadline_s, hold, then_back}. Every
point of the way is printed as `POINT name`; at the point named by `hold` it waits for a line on stdin, so that a fault can
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
            self.switch(session, release, source, {"armed": "armed", "defined": "defined", "started": "switched"})
        session.releases.mark_known_good(release.id, {"tokens": TOKENS}, "matrix")
        if self.wish["then_back"]:
            self.switch(session, source, release, {"stopped": "rolling-back"})

    def switch(self, session: HostSession, target: Manifest, previous: Manifest, points: dict[str, str]) -> None:
        """Switch, prove, confirm; whatever fails after the switch began ends with the previous release, proven."""
        activation = session.activation()
        deadline = float(self.wish["deadline_s"])
        try:
            switched = activation.switch(
                target,
                previous,
                deadline_s=deadline,
                log=lambda line: print(line, flush=True),
                at=lambda point: self.at(points[point]) if point in points else None,
            )
            forward = target.kind != "found"
            if forward:
                self.at("verifying")
            self.prove(session, target)
            if forward:
                self.at("disarming")
            if not activation.confirm(switched.token):
                raise OrchestrateError("the host had already gone back by itself")
        except OrchestrateError as error:
            self.back(session, previous, error)

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

    def prove(self, session: HostSession, release: Manifest) -> None:
        """The right release answers, twice from one process, with the same tokens as before."""
        prefix = release.environment.prefix if release.kind == "found" else session.releases.layout.venv(release.id)
        end = time.monotonic() + 30
        pid = session.services.status(session.unit).main_pid
        with session.http() as url:
            while True:
                try:
                    said = fetch(f"{url}/whoami")
                    break
                except (OSError, ValueError):
                    if time.monotonic() > end:
                        raise OrchestrateError("the service does not answer") from None
                    time.sleep(0.2)
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
