"""The real router with three stand-in engines: rolled forth and back under load, no request fails.

The engines are stand-ins so that thousands of requests take seconds; test_engines.py does it with real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts import rotation
from orchestrator.hosts.first_use import router_host
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.readiness import wait_ready
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.build import with_launch
from orchestrator.release.launch import Launch, with_flags
from orchestrator.release.manifest import EnvironmentFacts, Manifest
from orchestrator.remote.provision_router import provision_router
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport.embedded import embedded_home, remove_embedded
from tests.e2e.conftest import free_ports
from tests.rolling.under_load import load, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
STANDIN = Path(__file__).with_name("standin.py")
REPLICAS, STREAMS, REQUESTS = 3, 16, 1000


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
            for replica in session.replicas():
                argv = (sys.executable, str(STANDIN), "--port", str(replica.config.service.port))
                unit = ServiceUnit(replica.unit, (*argv, "--algorithm", "DFLASH"), stop_timeout_s=5)
                replica.services.install(unit)
                replica.services.start(replica.unit)
            for replica in session.replicas():
                ready(replica)
            provision_router(router_host(session), quiet)
            wait_until(lambda: all(rotation.in_rotation(one) for one in session.replicas()), 60)
            yield session
    finally:
        remove_embedded(home, "local")


def ready(replica: HostSession) -> None:
    wait_ready(replica, replica.unit, replica.config.service.port, 60, quiet)


def releases(replica: HostSession) -> tuple[Manifest, Manifest]:
    """The service as it is, and a release that starts it with another algorithm."""
    definition = replica.services.definition(replica.unit)
    assert definition is not None
    facts = dict.fromkeys(("python", "prefix", "base_prefix", "python_version", "kind", "package_path"), "")
    environment = EnvironmentFacts(**facts, package_version=None, package_kind="")
    found = Manifest(
        id=f"found-{replica.number:012x}", kind="found", host="local", unit=replica.unit, created_at="2026-01-01",
        launch=Launch.of(definition), environment=environment,
    )  # fmt: skip
    launch = found.launch.model_copy(update={"argv": with_flags(found.launch.argv, {"--algorithm": "DDTREE"})})
    return found, with_launch(found, found, launch, "dflash")


def move(replica: HostSession, target: Manifest, previous: Manifest) -> None:
    """What cut-over does on one replica, without the model's own proofs."""
    activation = replica.activation()
    rotation.take_out(replica, quiet)
    switched = activation.switch(target, previous, deadline_s=60)
    ready(replica)
    assert activation.confirm(switched.token)
    rotation.put_back(replica, quiet)


def url(host: HostSession) -> str:
    return f"http://127.0.0.1:{host.config.router.port}"


def algorithms(host: HostSession) -> list[Any]:
    found = []
    for replica in host.replicas():
        definition = replica.services.definition(replica.unit)
        assert definition is not None
        found.append(definition.argv[-1])
    return found


def test_no_request_fails_while_replicas_are_rolled_forth_and_back(host: HostSession, tmp_path: Path) -> None:
    pairs = [(replica, *releases(replica)) for replica in host.replicas()]
    for replica, found, tree in pairs:
        replica.releases.write(found)
        replica.releases.write(tree)
        replica.releases.point_current(found.id)
    with load(url(host), tmp_path / "deploy.json", STREAMS, REQUESTS) as deploy:
        for replica, found, tree in pairs:
            move(replica, tree, found)
    assert algorithms(host) == ["DDTREE"] * REPLICAS
    with load(url(host), tmp_path / "rollback.json", STREAMS, REQUESTS) as back:
        for replica, found, tree in pairs:
            move(replica, found, tree)
    assert algorithms(host) == ["DFLASH"] * REPLICAS
    for found in (deploy, back):
        assert found["failed"] == []
        assert found["sent"] >= REQUESTS
        assert found["tokens"] == 32 * found["sent"]
    assert host.releases.currents() == {found.id for _, found, _ in pairs}


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
    found, tree = releases(replica)
    rotation.take_out(replica, quiet)
    switched = replica.activation().switch(tree, found, deadline_s=60)
    assert not rotation.in_rotation(replica)
    fired = replica.deadman.fire(switched.token)
    assert fired.state == "fired", fired
    wait_until(lambda: rotation.in_rotation(replica), 60)
    assert algorithms(host) == ["DFLASH"] * REPLICAS
    assert replica.releases.current() == found.id


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
