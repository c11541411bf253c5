"""The real router with three stand-in engines: rolled forth and back under load, no request fails.

The engines are stand-ins so that thousands of requests take seconds; test_engines.py does it with real ones.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import TaskContext
from orchestrator.hosts import rotation
from orchestrator.hosts.comeback import Comeback
from orchestrator.hosts.first_use import router_host
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.readiness import wait_ready
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.build import with_launch
from orchestrator.release.found import find_service
from orchestrator.release.launch import flag_value, with_flags
from orchestrator.release.manifest import Manifest
from orchestrator.remote.provision_router import provision_router
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport.embedded import embedded_home, remove_embedded
from tasks.launch import ALGORITHM
from tasks.samples import SAMPLE_PROMPTS, Sample, default_prompts, take_samples
from tasks.takeover import KEY, TakeOver
from tests.ports import free_ports
from tests.rolling.under_load import load, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
STANDIN = Path(__file__).with_name("standin.py")
REPLICAS, STREAMS, REQUESTS = 3, 16, 1000
REJOIN_S = 4.0


def quiet(_text: str, _done: float | None, _total: float | None) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostSession]:
    home = tmp_path_factory.mktemp("router")
    port = free_ports(12)
    config = HostConfig.model_validate({
        "name": "local", "transport": "embedded", "engine": "sglang-cpu", "model": "tiny-dense",
        "service": {"port": port, "stop_timeout_s": 5, "start_timeout_s": 60}, "replicas": REPLICAS,
        "router": {"enabled": True, "port": port + 10, "policy": "round_robin", "drain_timeout_s": 60},
    })  # fmt: skip
    cache = REPOSITORY / ".cache" / "router"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with open_session(config, home) as session:
            opt = embedded_home(home, "local") / "opt"
            opt.mkdir(parents=True, exist_ok=True)
            (opt / "router").symlink_to(cache)
            package = opt / "lib" / "sglang"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text('__version__ = "0.5.20"\n')
            for replica in session.replicas():
                argv = (sys.executable, str(STANDIN), "--port", str(replica.config.service.port))
                env = {"PYTHONPATH": str(package.parent)}
                unit = ServiceUnit(replica.unit, (*argv, ALGORITHM, "DFLASH"), env, stop_timeout_s=5)
                replica.services.install(unit)
                replica.services.start(replica.unit)
            for replica in session.replicas():
                ready(replica)
            provision_router(router_host(session), quiet)
            wait_until(lambda: all(rotation.in_rotation(one) for one in session.replicas()), 60)
            with session.http() as engine:
                SAMPLES[:] = take_samples(engine, default_prompts(SAMPLE_PROMPTS), 16)
            yield session
    finally:
        remove_embedded(home, "local")


def ready(replica: HostSession) -> None:
    wait_ready(replica, replica.unit, replica.config.service.port, 60, quiet)


class ToTree(TakeOver):
    """The program's own cut-over, to a release that starts the stand-in with another command."""

    algorithm = "DDTREE"

    def __init__(self, *more: str) -> None:
        self._more = more

    def previous(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return find_service(replica.releases, replica.services, replica.unit, replica.config.service.port)

    def target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        found = self.previous(ctx, replica)
        argv = (*with_flags(found.launch.argv, {ALGORITHM: "DDTREE"}), *self._more)
        return with_launch(found, found, found.launch.model_copy(update={"argv": argv}), "dflash")

    def expected(self, ctx: TaskContext) -> list[Sample]:
        return SAMPLES

    def nodes(self, ctx: TaskContext) -> int:
        return 15


@dataclass
class Ctx:
    """What a task sees, without a store behind it."""

    host: HostSession
    outputs: dict[str, Any] = field(default_factory=dict)
    facts: dict[tuple[str, str], Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    settings: Mapping[str, str] = field(default_factory=lambda: {"confirm_s": "60"})
    run_id: str = "rolling"

    def output(self, key: str) -> Any:
        return self.outputs.get(key, {})

    def fact(self, kind: str, key: str, data: Any) -> None:
        self.facts[kind, key] = data

    def log(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, *_: object) -> None: ...

    def check_cancelled(self) -> None: ...


SAMPLES: list[Sample] = []


def url(host: HostSession) -> str:
    return f"http://127.0.0.1:{host.config.router.port}"


def algorithms(host: HostSession) -> list[Any]:
    found = []
    for replica in host.replicas():
        definition = replica.services.definition(replica.unit)
        assert definition is not None
        found.append(flag_value(definition.argv, ALGORITHM))
    return found


def test_no_request_fails_while_replicas_are_rolled_forth_and_back(host: HostSession, tmp_path: Path) -> None:
    ctx, action = Ctx(host), ToTree()
    found = [action.previous(ctx, replica).id for replica in host.replicas()]  # type: ignore[arg-type]
    with load(url(host), tmp_path / "deploy.json", STREAMS, REQUESTS) as deploy:
        ctx.outputs[KEY] = action.apply(ctx)  # type: ignore[arg-type]
        evidence = action.verify(ctx)  # type: ignore[arg-type]
    assert algorithms(host) == ["DDTREE"] * REPLICAS
    assert (evidence.data["replicas"], evidence.data["drift"]) == (REPLICAS, [])
    assert f"{REPLICAS} replicas behind the router" in evidence.output
    live = [data for (kind, _), data in ctx.facts.items() if kind == "release" and data["current"]]
    assert [one["known_good"] for one in live] == [True] * REPLICAS
    assert ctx.facts["deadman", "local/2"]["armed"] is False
    assert action.probe(ctx).satisfied  # type: ignore[arg-type]
    with load(url(host), tmp_path / "rollback.json", STREAMS, REQUESTS) as back:
        action.undo(ctx)  # type: ignore[arg-type]
    assert algorithms(host) == ["DFLASH"] * REPLICAS
    for way in (deploy, back):
        assert way["failed"] == []
        assert way["sent"] >= REQUESTS
        assert way["tokens"] == 32 * way["sent"]
    assert host.releases.currents() == set(found)


def test_a_release_that_answers_wrongly_stops_at_the_first_replica_and_is_undone(host: HostSession) -> None:
    ctx, action = Ctx(host), ToTree("--wrong")
    with pytest.raises(OrchestrateError, match=r"sglang-0 does not give the recorded tokens"):
        action.apply(ctx)  # type: ignore[arg-type]
    assert algorithms(host)[1:] == ["DFLASH"] * (REPLICAS - 1)
    assert not rotation.in_rotation(host)
    action.undo(ctx)  # type: ignore[arg-type]
    assert algorithms(host) == ["DFLASH"] * REPLICAS
    assert rotation.in_rotation(host)
    assert host.deadman.status().state in ("fired", "disarmed")


def test_a_router_that_is_gone_keeps_no_replica_from_going_back(host: HostSession) -> None:
    """The services come back all the same; that the router does not know is an error, not a success."""
    ctx, action = Ctx(host), ToTree()
    action.apply(ctx)  # type: ignore[arg-type]
    host.services.stop(host.config.router_unit)
    try:
        with pytest.raises(OrchestrateError, match="router on 'local' does not answer"):
            action.undo(ctx)  # type: ignore[arg-type]
        assert algorithms(host) == ["DFLASH"] * REPLICAS
    finally:
        host.services.start(host.config.router_unit)
    wait_until(lambda: _up(host), 60)
    action.undo(ctx)  # type: ignore[arg-type]


def test_the_same_without_draining_fails_requests(host: HostSession, tmp_path: Path) -> None:
    """The control: what the test above relies on would show."""
    replica = host.replicas()[1]
    with load(url(host), tmp_path / "control.json", STREAMS, 100) as found:
        replica.services.stop(replica.unit)
        replica.services.start(replica.unit)
        ready(replica)
    assert found["failed"]
    rotation.put_back(replica, quiet)
    wait_until(lambda: all(rotation.in_rotation(one) for one in host.replicas()), 60)


def test_the_last_healthy_replica_is_never_taken_out(host: HostSession) -> None:
    first, second, third = host.replicas()
    rotation.take_out(first, quiet)
    rotation.take_out(second, quiet)
    with pytest.raises(OrchestrateError, match="only healthy replica"):
        rotation.take_out(third, quiet)
    rotation.put_back(first, quiet)
    rotation.put_back(second, quiet)
    assert all(rotation.in_rotation(one) for one in host.replicas())


def test_a_host_that_went_back_by_itself_tells_the_router(host: HostSession) -> None:
    """The operator is gone after the switch: the dead man's switch restores the replica and its place at the router."""
    replica = host.replicas()[2]
    ctx, action = Ctx(host), ToTree()
    found, tree = action.previous(ctx, replica), action.target(ctx, replica)  # type: ignore[arg-type]
    rotation.take_out(replica, quiet)
    switched = replica.activation().switch(tree, found, deadline_s=60)
    assert not rotation.in_rotation(replica)
    fired = replica.deadman.fire(switched.token)
    assert fired.state == "fired", fired
    wait_until(lambda: rotation.in_rotation(replica), 60)
    assert algorithms(host) == ["DFLASH"] * REPLICAS
    assert replica.releases.current() == found.id


@contextlib.contextmanager
def a_long_request(replica: HostSession) -> Iterator[None]:
    """Something that a drain has to wait for: half a minute of tokens, fetched by nobody."""
    body = {"model": "standin", "prompt": "long", "max_tokens": 3000, "stream": True}
    wish = urllib.request.Request(
        f"http://127.0.0.1:{replica.config.service.port}/v1/completions", json.dumps(body).encode()
    )
    with urllib.request.urlopen(wish, timeout=60):
        yield


def lose_an_operator(host: HostSession, number: int) -> None:
    """One that took a replica out and is killed while its requests still run."""
    config = host.declared or host.config
    config = config.model_copy(update={"router": config.router.model_copy(update={"rejoin_after_s": REJOIN_S})})
    command = [
        sys.executable,
        "-m",
        "tests.rolling.operator",
        str(host.state_dir),
        config.model_dump_json(),
        str(number),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as operator:
        assert operator.stdout is not None
        assert operator.stdout.readline() == "drains\n"
        assert not rotation.in_rotation(host.replicas()[number])
        operator.kill()


def guard_result(replica: HostSession) -> dict[str, Any] | None:
    """What the host decided without its operator; None as long as it waits."""
    folder = Path(replica.releases.layout.rejoin)
    if (folder / "away.json").exists():
        return None
    return dict(json.loads((folder / "result.json").read_text()))


def test_a_replica_whose_operator_was_killed_while_it_drained_is_put_back_by_its_host(host: HostSession) -> None:
    replica = host.replicas()[1]
    before = replica.services.status(replica.unit).main_pid
    with a_long_request(replica):
        lose_an_operator(host, 1)
        wait_until(lambda: rotation.in_rotation(replica), 60)
    wait_until(lambda: guard_result(replica) is not None, 60)
    assert guard_result(replica)["state"] == "back"  # type: ignore[index]
    assert replica.services.status(replica.unit).main_pid == before
    ctx, action = Ctx(host), ToTree()
    action.apply(ctx)  # type: ignore[arg-type]
    assert algorithms(host) == ["DDTREE"] * REPLICAS
    action.undo(ctx)  # type: ignore[arg-type]
    assert all(rotation.in_rotation(one) for one in host.replicas())
    assert not list(Path(host.root).glob("rejoin*/away.json"))


def test_a_replica_that_was_stopped_after_its_operator_was_lost_stays_out(host: HostSession) -> None:
    replica = host.replicas()[1]
    with a_long_request(replica):
        lose_an_operator(host, 1)
    replica.services.stop(replica.unit)
    replica.services.start(replica.unit)  # by hand, with settings that nobody knows: whoever did that puts it back
    ready(replica)
    wait_until(lambda: guard_result(replica) is not None, 60)
    assert guard_result(replica)["why"] == "the service was stopped meanwhile"  # type: ignore[index]
    assert not rotation.in_rotation(replica)
    rotation.put_back(replica, quiet)
    assert rotation.in_rotation(replica)


def test_a_run_that_lost_its_replica_to_the_host_does_not_go_on(host: HostSession) -> None:
    """An operator that was away for too long must not stop a replica that gets requests again."""
    guard = Comeback(host.replicas()[2])
    guard.arm()
    Comeback(host.replicas()[2]).arm()  # what the host knows is another guard's
    with pytest.raises(OrchestrateError, match=r"sglang-2 of 'local' is no longer held out of the router"):
        guard.beat()
    guard.drop()


def test_a_router_that_is_down_is_named(host: HostSession) -> None:
    unit = host.config.router_unit
    host.services.stop(unit)
    try:
        with pytest.raises(OrchestrateError, match="router on 'local' does not answer"):
            rotation.take_out(host.replicas()[0], quiet)
    finally:
        host.services.start(unit)
    wait_until(lambda: _up(host), 60)


def _up(host: HostSession) -> bool:
    try:
        return all(rotation.in_rotation(one) for one in host.replicas())
    except OrchestrateError:
        return False
