"""An open session with one host: what every task uses as ctx.host."""

from __future__ import annotations

import contextlib
import functools
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.errors import OrchestrateError
from orchestrator.hosts import secrets
from orchestrator.hosts.inventory import HostConfig
from orchestrator.openai.endpoint import Endpoint
from orchestrator.recent import Recent
from orchestrator.release.activate import Activation
from orchestrator.release.deadman import Deadman, ProcessTrigger
from orchestrator.release.layout import Layout
from orchestrator.release.store import ReleaseStore
from orchestrator.release.systemd_trigger import SystemdTrigger
from orchestrator.remote.bridge import Bridge
from orchestrator.remote.longwork import LongWork
from orchestrator.remote.process_driver import ProcessDriver
from orchestrator.remote.router import rejoin_command
from orchestrator.remote.services import ServiceDriver
from orchestrator.remote.systemd_driver import SystemdDriver, user_scope
from orchestrator.transport.base import Transport
from orchestrator.transport.container import ContainerTransport
from orchestrator.transport.embedded import ensure_embedded
from orchestrator.transport.settings import SshSettings
from orchestrator.transport.ssh import SshTransport

PINNED_HOSTS = "known_hosts"
DEFAULT_PORT = 22
ROUTER_KEY, TREE_SERVER_KEY = "router_api_key", "tree_server_api_key"
KEYS_OF_OTHERS = frozenset({ROUTER_KEY, TREE_SERVER_KEY})


@dataclass
class HostSession:
    """One host while a run uses it. Paths are absolute on the host; `wheel_dir` is on this machine.

    `masker` hides this host's secrets in everything that leaves the program. A host with several replicas is seen
    through its first one: `config` holds that one's unit and ports, `declared` what hosts.yaml says.
    """

    name: str
    config: HostConfig
    transport: Transport
    state_dir: Path
    masker: secrets.Masker = field(default_factory=secrets.Masker)
    number: int = 0
    declared: HostConfig | None = None
    recent: Recent = field(default_factory=Recent)
    resolved: dict[str, str] = field(default_factory=dict, repr=False)  # what `secrets` refer to, asked for once

    def replicas(self) -> list[HostSession]:
        """A session for each replica, this one first when it is the first; they share one connection."""
        declared = self.declared or self.config
        return [
            self
            if number == self.number
            else replace(self, config=declared.of_replica(number), number=number, declared=declared, recent=Recent())
            for number in range(declared.replicas)
        ]

    @functools.cached_property
    def home(self) -> str:
        """The login user's home folder."""
        done = self.transport.run(["/bin/sh", "-c", "cd && pwd -P"], check=True)
        return done.stdout.strip()

    @functools.cached_property
    def root(self) -> str:
        """Where releases are built; a relative root in hosts.yaml lies under the home folder."""
        return posixpath.join(self.home, self.config.root)

    @functools.cached_property
    def services(self) -> ServiceDriver:
        """The driver that hosts.yaml names."""
        return make_driver(self)

    @functools.cached_property
    def releases(self) -> ReleaseStore:
        """The releases below `root`."""
        return ReleaseStore(self.transport, Layout(self.root, self.number), privileged=self.privileged)

    @functools.cached_property
    def deadman(self) -> Deadman:
        driver = self.services
        if isinstance(driver, SystemdDriver):
            suffix = self.releases.layout.suffix
            return Deadman(self.releases, SystemdTrigger(self.transport, driver, self.unit, suffix))
        return Deadman(self.releases, ProcessTrigger(self.transport))

    @property
    def privileged(self) -> bool:
        """Whether root is used for units and releases: system units, unless hosts.yaml says `sudo: none`.

        Commands inside a container are root's anyway.
        """
        root = self.config.sudo.method != "none" or self.config.container is not None
        return self.config.service.driver == "systemd" and root

    def work(self, name: str) -> LongWork:
        """A piece of long work on this host that survives the connection."""
        folder = posixpath.join(self.root, "work")
        return LongWork(self.transport, self.services, folder, name, privileged=self.privileged)

    def activation(self) -> Activation:
        """The switch between releases on this host's unit; resolves the secrets."""
        rejoin = rejoin_command(self.config) if self.config.router.enabled else None
        after = () if rejoin is None else (rejoin,)
        stop_s = self.config.service.stop_timeout_s
        return Activation(
            self.releases, self.services, self.deadman, self.unit, self.secret_env(), after,
            stop_timeout_s=stop_s, bridge=self.bridge,
        )  # fmt: skip

    @functools.cached_property
    def bridge(self) -> Bridge | None:
        """How an engine can stand in for the unit; None where a router does that, or root or systemd is not ours."""
        config = self.config
        if not self.privileged or config.router.enabled or config.service.stand_in == "never":
            return None
        stem = self.unit.removesuffix(".service").replace("@", "-")
        return Bridge(
            self.transport,
            service=config.service.port,
            side=config.stand_in_port,
            unit=f"{stem}-standin.service",
            start_timeout_s=config.service.start_timeout_s,
            filtered=config.service.stand_in == "always",
        )

    @property
    def wheel_dir(self) -> Path:
        return self.state_dir / ".cache" / "wheels"

    @property
    def unit(self) -> str:
        return self.config.service.unit

    @contextlib.contextmanager
    def http(self, port: int | None = None, key: str = "api_key") -> Iterator[Endpoint]:
        """An address on this machine (`http://127.0.0.1:PORT`) that reaches a loopback port of the host.

        It carries the key that hosts.yaml gives for the service and its side engines, or the one that `key` names.
        """
        with self.transport.forward(port or self.config.service.port) as local:
            yield Endpoint(f"http://127.0.0.1:{local}", self.secret(key), f"hosts.{self.name}.secrets.{key}")

    def close(self) -> None:
        self.transport.close()

    def secret_env(self) -> dict[str, str]:
        """The service's own of `secrets`, by name in upper case; known to the masker from here on.

        Keys of other servers are none of its business, and need no value before something asks for them.
        """
        return {name.upper(): self._resolve(name) for name in self.config.secrets if name.lower() not in KEYS_OF_OTHERS}

    def secret(self, name: str) -> str | None:
        """The value behind one of `secrets`, however its name is written; None where hosts.yaml does not give it."""
        known = next((own for own in self.config.secrets if own.lower() == name), None)
        return None if known is None else self._resolve(known)

    def _resolve(self, name: str) -> str:
        if name not in self.resolved:
            value = secrets.resolve(self.config.secrets[name], what=f"hosts.{self.name}.secrets.{name}")
            self.masker.add(value)
            self.resolved[name] = value
        return self.resolved[name]


def connect(config: HostConfig, state_dir: Path, masker: secrets.Masker | None = None) -> HostSession:
    """Connect to a host, starting the embedded one if need be; the caller closes the session."""
    masker = masker or secrets.Masker()
    link = SshTransport(connection_settings(config, state_dir, masker), masker.mask)
    transport: Transport = link if config.container is None else ContainerTransport(link, config.container.id)
    try:
        link.connect()
    except BaseException:
        transport.close()
        raise
    return HostSession(config.name, config.of_replica(0), transport, state_dir, masker, declared=config)


@contextlib.contextmanager
def open_session(config: HostConfig, state_dir: Path, masker: secrets.Masker | None = None) -> Iterator[HostSession]:
    """`connect`, closed at the end."""
    session = connect(config, state_dir, masker)
    try:
        yield session
    finally:
        session.close()


def connection_settings(config: HostConfig, state_dir: Path, masker: secrets.Masker) -> SshSettings:
    """How to reach a host of the inventory."""
    if config.transport == "embedded":
        port = None if config.port == DEFAULT_PORT else config.port
        return ensure_embedded(
            state_dir,
            config.name,
            port=port,
            idle_timeout_s=config.idle_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
        )
    if config.address is None:
        raise OrchestrateError(f"host {config.name!r} has no address; add one in hosts.yaml.")

    def sudo_password() -> str:
        value = secrets.resolve(config.sudo.password or "", what=f"hosts.{config.name}.sudo.password")
        masker.add(value)
        return value

    return SshSettings(
        name=config.name,
        address=config.address,
        pinned_hosts=state_dir / PINNED_HOSTS,
        port=None if config.port == DEFAULT_PORT else config.port,  # ssh_config may name another
        user=config.user,
        identity_file=config.identity_file,
        jump=config.jump,
        connect_timeout_s=config.connect_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        sudo=config.sudo.method,
        sudo_password=sudo_password if config.sudo.password else None,
        user_known_hosts=Path.home() / ".ssh" / "known_hosts",
    )


def make_driver(session: HostSession) -> ServiceDriver:
    """The service driver of a host; refuses what the host cannot do."""
    hide = session.masker.add
    if session.config.service.driver == "process":
        return ProcessDriver(session.transport, session.home, hide)
    env_folder = posixpath.join(session.root, "env")
    if not session.privileged:
        return SystemdDriver(session.transport, env_folder, user_scope(session.transport, session.home), hide)
    return SystemdDriver(session.transport, env_folder, hide=hide)
