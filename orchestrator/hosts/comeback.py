"""A replica that is out of its router is put back by the host itself when its operator is heard of no more."""

from __future__ import annotations

import json
import posixpath
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.session import HostSession
from orchestrator.remote.router import Waiting, worker_url, workers_api
from orchestrator.remote.script import source
from orchestrator.remote.systemd_driver import SystemdDriver

BEATS = 5  # words of the operator in the time after which the host believes that it is gone


@dataclass
class Comeback:
    """The guard of one replica; `arm` before it leaves the router, `drop` once it is back."""

    session: HostSession
    token: str = ""
    _beaten: float = field(default=0.0, repr=False)

    @property
    def folder(self) -> str:
        return self.session.releases.layout.rejoin

    @property
    def script(self) -> str:
        return posixpath.join(self.folder, "rejoin.py")

    def arm(self) -> None:
        """From now on silence brings the replica back, unless its service was stopped; replaces an earlier guard."""
        session, config = self.session, self.session.config
        self.token = secrets.token_hex(8)
        router_key, replica_key = session.secret("router_api_key"), session.secret("api_key")
        plan = {
            "token": self.token,
            "seconds": config.router.rejoin_after_s,
            "grace_s": config.service.start_timeout_s,
            "api": workers_api(config),
            "headers": {"Authorization": f"Bearer {router_key}"} if router_key else {},
            "wish": {"url": worker_url(config)} | ({"api_key": replica_key} if replica_key else {}),
            "port": config.service.port,
            "pid": session.services.status(session.unit).main_pid,
            "deadman": session.releases.layout.deadman,
        }
        session.releases.sh('mkdir -p -m 700 "$1"', self.folder)
        session.releases.put(source("rejoin").decode(), self.script, mode=0o755)
        self._say("arm", stdin=json.dumps(plan).encode())
        self._start()
        self._beaten = time.monotonic()

    def beating(self, waiting: Waiting) -> Waiting:
        """`waiting`, which also lets the host know from time to time that its operator is there."""
        every = self.session.config.router.rejoin_after_s / BEATS

        def show(text: str, waited: float, limit: float) -> None:
            waiting(text, waited, limit)
            if self.token and time.monotonic() - self._beaten > every:
                self.beat()

        return show

    def beat(self) -> None:
        """Raises when the host has decided meanwhile: whoever goes on would stop a replica that gets requests."""
        if not self.token:
            return
        state = self._say("beat", self.token)
        if state != "armed":
            raise OrchestrateError(
                f"{self.session.unit} of {self.session.name!r} is no longer held out of the router: the host had heard "
                f"nothing for {self.session.config.router.rejoin_after_s:g} s; run again."
            )
        self._beaten = time.monotonic()

    def drop(self) -> None:
        """The replica is back, or out for good; also ends the guard of a run that was lost."""
        releases = self.session.releases
        if releases.sh('test -e "$1" && echo yes || true', self.script).strip():
            self._say("drop")
        self.token = ""

    def _start(self) -> None:
        session = self.session
        if isinstance(session.services, SystemdDriver):
            name = f"orchestrate-rejoin{session.releases.layout.suffix}-{self.token}"
            session.services.run_apart(name, ["python3", self.script, "wait", self.folder, self.token])
        else:
            self._say("detach", self.token)

    def _say(self, verb: str, *more: str, stdin: bytes | None = None) -> str:
        command: Sequence[str] = ("python3", self.script, verb, self.folder, *more)
        done = self.session.transport.run(command, stdin=stdin, sudo=self.session.privileged, check=True)
        return str(json.loads(done.stdout.strip().splitlines()[-1])["state"])
