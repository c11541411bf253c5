"""Opens one hardened SSH connection (Fabric reads ssh_config and jump hosts) and types every way it can fail."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import fabric
import paramiko

from orchestrator.errors import HostError
from orchestrator.transport import hostkeys
from orchestrator.transport.base import AuthenticationFailed, HostUnreachable
from orchestrator.transport.settings import SshSettings

AGENT_PATIENCE_S = 2.0


def open_connection(settings: SshSettings) -> fabric.Connection:
    """A connected, authenticated Fabric connection with strict keys on every hop. Raises the HostError family."""
    connection = _prepare(settings)
    try:
        connection.open()
        hostkeys.check_not_revoked(connection.client, settings.name, settings.user_known_hosts)
        _tune_sockets(connection, settings)
    except BaseException as error:
        _close(connection)
        if isinstance(error, HostError) or not isinstance(error, Exception):
            raise
        raise _typed(settings, connection, error) from error
    return connection


def fetch_host_key(settings: SshSettings) -> tuple[str, paramiko.PKey]:
    """(known_hosts name, key) that the host shows now, without logging in; jump hosts before it must be trusted."""
    connection = _prepare(settings)
    shown: list[tuple[str, paramiko.PKey]] = []

    class Seen(Exception):
        pass

    class Show(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            shown.append((hostname, key))
            raise Seen

    bare = paramiko.SSHClient()  # knows no host, so every key is shown
    bare.set_missing_host_key_policy(Show())
    connection.client = bare
    try:
        connection.open()
    except Seen:
        return shown[0]
    except HostError:
        raise
    except Exception as error:
        raise _typed(settings, connection, error) from error
    finally:
        _close(connection)
    raise HostUnreachable(f"host {settings.name!r} showed no key; check that sshd runs there.")


def close_connection(connection: fabric.Connection) -> None:
    """Close a connection and the jump hosts below it, never raising."""
    _close(connection)


def _prepare(settings: SshSettings) -> fabric.Connection:
    config = fabric.Config(overrides={"load_ssh_configs": settings.use_ssh_config})
    patience = settings.connect_timeout_s
    base: dict[str, Any] = {
        "banner_timeout": patience,
        "auth_timeout": patience,
        "channel_timeout": patience,
        "allow_agent": settings.use_agent and agent_answers(),
        "look_for_keys": settings.use_default_keys,
    }
    if settings.identity_file:
        base["key_filename"] = str(Path(settings.identity_file).expanduser())  # jump hosts are offered it too
    gateway = None
    for hop in (settings.jump or "").split(","):
        if hop.strip():
            gateway = fabric.Connection(
                hop.strip(), config=config, gateway=gateway, connect_timeout=patience, connect_kwargs=dict(base)
            )
    connection = fabric.Connection(
        settings.address,
        user=settings.user,
        port=settings.port,
        config=config,
        connect_timeout=patience,
        connect_kwargs=dict(base),
        **({"gateway": gateway} if gateway is not None else {}),
    )
    hop_connection = connection
    while isinstance(hop_connection, fabric.Connection):
        # Fabric adds unknown keys by itself on every connection, jump hosts included.
        hostkeys.harden(hop_connection.client, settings.name, settings.pinned_hosts, settings.user_known_hosts)
        hop_connection.connect_timeout = patience
        for key, value in base.items():
            hop_connection.connect_kwargs.setdefault(key, value)
        hop_connection = hop_connection.gateway
    return connection


def _tune_sockets(connection: fabric.Connection, settings: SshSettings) -> None:
    """Let TCP give up on unacknowledged data and send small requests at once; only real sockets have the options."""
    hop = connection
    while isinstance(hop, fabric.Connection):
        sock = hop.transport.sock if hop.transport is not None else None
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.idle_timeout_s * 1000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hop = hop.gateway


def agent_answers() -> bool:
    """False when SSH_AUTH_SOCK is unset or stale: a dead agent socket would hang the login for ever."""
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(AGENT_PATIENCE_S)
            probe.connect(path)
            probe.sendall(b"\0\0\0\x01\x0b")  # SSH_AGENTC_REQUEST_IDENTITIES
            return len(probe.recv(5)) > 0
    except OSError:
        return False


def _typed(settings: SshSettings, connection: fabric.Connection, error: Exception) -> HostError:
    where = f"host {settings.name!r} ({connection.user}@{connection.host}:{connection.port})"
    if isinstance(error, paramiko.BadHostKeyException):
        return hostkeys.mismatch(settings.name, error)
    if isinstance(error, paramiko.AuthenticationException | paramiko.PasswordRequiredException):
        return AuthenticationFailed(
            f"{where} refused the login with every key that was offered; add your public key there, or name the right "
            "one as identity_file in hosts.yaml or ssh_config."
        )
    if isinstance(error, FileNotFoundError):
        return AuthenticationFailed(
            f"{where}: the identity file {error.filename} does not exist; correct it in hosts.yaml."
        )
    if isinstance(error, TimeoutError):
        return HostUnreachable(
            f"{where} did not answer within {settings.connect_timeout_s:g} s; check address, network and "
            "connect_timeout_s."
        )
    why = getattr(error, "strerror", None) or error
    return HostUnreachable(f"{where} cannot be reached ({why}); check that it is up and that sshd listens there.")


def _close(connection: fabric.Connection) -> None:
    hop: Any = connection
    while isinstance(hop, fabric.Connection):
        # A refused login keeps its half-open session otherwise, which counts against sshd's MaxStartups.
        with contextlib.suppress(Exception):
            hop.client.close()
        with contextlib.suppress(Exception):
            hop.close()
        hop = hop.gateway
