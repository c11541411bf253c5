"""An embedded host with the real SGLang on CPU for deployments that are killed, and how it and a store were left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.hosts.load import load_inventory, select_host
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.manifest import Manifest
from orchestrator.store.store import open_store
from orchestrator.transport.embedded import embedded_home, processes_of
from tests.e2e.conftest import INVENTORY, QUICK, Result, Story
from tests.ports import free_ports

HOST = "local"
SETTLE_S = 40.0
RUN_S = 3600.0


@dataclass(frozen=True)
class Way:
    """One way to end a deployment; `cutover` says whether the service is restarted with the release."""

    settings: tuple[str, ...]
    exit_code: int


PATIENT = ("--set", "confirm_s=900")  # on a busy machine the host must not go back before the kill
KEEP = Way((*QUICK, "--set", "decide=keep-linear", "--reason", "kill points"), 9)
ADOPT = Way((*QUICK, *PATIENT, "--set", "decide=adopt", "--set", "nodes=15", "--reason", "kill points"), 0)
WAYS = {"keep": KEEP, "adopt": ADOPT}


class Yard:
    """The embedded host and the stores of the points."""

    def __init__(self, home: Path) -> None:
        inventory = home / "hosts.yaml"
        if not inventory.exists():
            inventory.write_text(INVENTORY.format(port=free_ports(6)))
        self.config = select_host(load_inventory(inventory), HOST)
        self.story = Story(home, self.config.service.port)
        self.stores = len(list(home.glob("point*.db")))

    def remembered(self, way: str) -> Path:
        """The undisturbed run of an earlier call with the same --home; it holds for the same sources only."""
        return self.story.home / f"undisturbed-{way}.pickle"

    def new_store(self) -> str:
        self.stores += 1
        return f"sqlite:///{self.story.home}/point{self.stores}.db"

    def deploy(self, way: Way, store: str, *more: str) -> list[str]:
        return ["run", "deploy-ddtree", "--yes", *way.settings, "--state", store, *more]

    @contextmanager
    def session(self) -> Iterator[HostSession]:
        with open_session(self.config, self.story.home) as session:
            yield session

    def as_found(self) -> None:
        """The linear service live and every release of ours gone, as before the first run."""
        with self.session() as session:
            live_tree = session.services.definition(session.unit)
        if live_tree is not None and live_tree.overridden:
            must(self.story.orchestrate("rollback", "--yes", "--state", self.last_store()))
        with self.session() as session:
            for name in session.releases.ids():
                if name.startswith("ddtree-"):
                    session.releases.forget_known_good(name)
                    session.releases.discard(name)

    def last_store(self) -> str:
        return f"sqlite:///{self.story.home}/point{self.stores}.db"

    def state(self, store: str) -> dict[str, Any]:
        """What must be the same with and without a kill."""
        with self.session() as session:
            definition = session.services.definition(session.unit)
            releases = {name: session.releases.read(name) for name in session.releases.ids()}
            host = {
                "algorithm": self.story.server_info()["speculative_algorithm"],
                "speculates": self.story.generate()["meta_info"]["spec_verify_ct"] > 0,
                "unit runs": session.services.status(session.unit).running,
                "release of the unit": definition.release if definition else None,
                "units": sorted(path.name for path in self._services().iterdir()),
                "releases": {name: shape(one) for name, one in releases.items()},
                "current": session.releases.current(),
                "known good": sorted(one.release for one in session.releases.known_good()),
                "switch armed": session.deadman.status().state in ("armed", "firing"),
            }
        with open_store(store, read_only=True) as opened:
            run = opened.runs.list()[0]
            tasks = {task.key: str(task.state) for task in opened.tasks.list(run.id)}
        return {**host, "processes": self.processes(), "run": (str(run.state), run.exit_code), "tasks": tasks}

    def processes(self) -> list[str]:
        """The processes of the host by the program they run, without numbers."""
        names = []
        for pid in processes_of(embedded_home(self.story.home, HOST)):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            names.append(name)
        return sorted(names)

    def starts(self) -> int:
        """How often the live service has been started since it was set up."""
        log = self._services() / self.config.service.unit / "log"
        return sum(line.count("server_args=") for line in log.read_text(errors="replace").splitlines())

    def built(self) -> dict[str, str]:
        """When each whole release was built."""
        with self.session() as session:
            return {name: session.releases.read(name).created_at for name in session.releases.ids()}

    def _services(self) -> Path:
        return embedded_home(self.story.home, HOST) / ".orchestrate" / "services"

    def settled(self, store: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The state as soon as it is as wanted, else what it is after a while: processes take time to go."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = self.state(store)
            if found == wanted or time.monotonic() > deadline:
                return found
            time.sleep(0.5)


def shape(release: Manifest) -> tuple[int, int, str]:
    """Files added and changed in the clone, and the digest of the environment that it was cloned from."""
    source = release.source_digest
    return len(release.added), len(release.changed), source.sha256 if source else ""


def must(result: Result) -> Result:
    if result.code not in (0, 9):
        raise RuntimeError(f"orchestrate ended with {result.code}: {result.stderr[-2000:]}")
    return result
