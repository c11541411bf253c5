"""The transport and everything on it against real sshd hosts: trust, sudo, jump hosts, lost links, containers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import LockedError, OrchestrateError
from orchestrator.hosts import lock
from orchestrator.hosts.clean import clean_host
from orchestrator.hosts.session import open_session
from orchestrator.hosts.trust import pin_key, shown_keys
from orchestrator.release.drift import drift_of
from orchestrator.release.found import find_service
from orchestrator.remote.services import Override, ServiceUnit
from orchestrator.store.store import open_store
from orchestrator.transport.base import (
    ConnectionLost,
    HostKeyMismatch,
    HostKeyUnknown,
    HostUnreachable,
    SudoUnavailable,
)
from tests.hosts_lab import scene
from tests.hosts_lab.conftest import OpenSession
from tests.hosts_lab.lab import LabHost

PCT = """\
#!/bin/sh
# A container of the test host: another host name, root inside, no network of its own.
case "$1" in
    exec) shift 2; [ "$1" = -- ] && shift; exec unshare -u sh -c 'hostname ct-inside; exec "$@"' sh "$@";;
    status) echo "status: running";;
esac
"""


@pytest.fixture
def second() -> Iterator[LabHost]:
    host = LabHost("second").up()
    try:
        yield host
    finally:
        host.down()


def test_trust_shows_the_hosts_own_fingerprint_and_pins_it(machine: LabHost, tmp_path: Path) -> None:
    config = machine.config()
    with pytest.raises(HostKeyUnknown, match="hosts trust"), open_session(config, tmp_path):
        pass
    (shown,) = shown_keys(config, tmp_path)
    assert shown.fingerprint in machine.inside("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    assert not shown.pinned
    pin_key(config, tmp_path, [shown])
    with open_session(config, tmp_path) as session:
        assert session.transport.run(["hostname"]).stdout.strip() == machine.name
    assert shown_keys(config, tmp_path)[0].pinned
    machine.inside(
        "rm /etc/ssh/ssh_host_ed25519_key* && ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key && "
        "systemctl restart ssh"
    )
    with pytest.raises(HostKeyMismatch, match="reinstalled"), open_session(config, tmp_path):
        pass
    pin_key(config, tmp_path, shown_keys(config, tmp_path))
    with open_session(config, tmp_path) as session:
        assert session.transport.run(["true"]).ok


def test_a_sudo_password_travels_on_stdin_only(
    machine: LabHost, connect: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = "canary-password-5150"
    machine.inside(f"echo deploy:{password} | chpasswd && echo 'deploy ALL=(ALL) ALL' > /etc/sudoers.d/deploy")
    with connect(machine) as session, pytest.raises(SudoUnavailable, match="password is required"):
        session.transport.run(["id", "-u"], sudo=True)
    monkeypatch.setenv("LAB_PASSWORD", password)
    with connect(machine, sudo={"method": "askpass", "password": "env:LAB_PASSWORD"}) as session:
        done = session.transport.run(["sh", "-c", "id -u; cat"], sudo=True, stdin=b"the rest", check=True)
        assert done.stdout == "0\nthe rest"
        seen = session.transport.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], sudo=True, check=True)
        assert password not in seen.stdout
        session.transport.put_bytes(b"for root", "/root/file", mode=0o600, sudo=True)
        assert session.transport.get_bytes("/root/file", sudo=True) == b"for root"
    assert password not in machine.inside("journalctl --no-pager -o cat")
    monkeypatch.setenv("LAB_PASSWORD", "wrong")
    with (
        connect(machine, sudo={"method": "askpass", "password": "env:LAB_PASSWORD"}) as session,
        pytest.raises(SudoUnavailable),
    ):
        session.transport.run(["id", "-u"], sudo=True)


@pytest.mark.parametrize(
    ("end", "mend"),
    [
        ("mv /etc/sudoers.d/deploy /root/", "mv /root/deploy /etc/sudoers.d/"),
        ("chage -E 2000-01-01 deploy", "chage -E -1 deploy"),
    ],
    ids=["rights", "account"],
)
def test_sudo_that_expires_in_the_middle_is_named_and_the_service_goes_on(
    machine: LabHost, connect: OpenSession, end: str, mend: str
) -> None:
    with connect(machine) as session:
        assert session.transport.run(["id", "-u"], sudo=True, check=True).stdout == "0\n"
        machine.inside(end)
        with pytest.raises(SudoUnavailable, match="grant it there"):
            session.services.set_override("sglang.service", Override(("/bin/true",)))
        machine.inside(mend)
        definition = session.services.definition("sglang.service")
        assert definition is not None
        assert not definition.overridden
        assert scene.whoami(machine) is not None


def test_a_jump_host_is_strict_too_and_a_silent_target_behind_it_is_noticed(
    machine: LabHost, second: LabHost, tmp_path: Path
) -> None:
    config = machine.config(jump=f"deploy@{second.address}")
    (tmp_path / "known_hosts").write_text(machine.pinned_line())
    with pytest.raises(HostKeyUnknown), open_session(config, tmp_path):
        pass
    (tmp_path / "known_hosts").write_text(machine.pinned_line() + second.pinned_line())
    with open_session(config, tmp_path) as session:
        came_from = session.transport.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[0]
        assert came_from == second.address
        # The jump host answers on, only the host behind it is gone: TCP to the jump host says nothing.
        with pytest.raises(ConnectionLost, match="silent"):
            session.transport.run(
                ["sh", "-c", "echo up; sleep 90"], on_line=lambda *_: machine.link(False), timeout_s=None
            )
        machine.link(True)


def test_a_cut_link_ends_a_command_and_a_later_one_works(machine: LabHost, connect: OpenSession) -> None:
    with connect(machine) as session:
        with pytest.raises(ConnectionLost):
            session.transport.run(
                ["sh", "-c", "echo up; sleep 90"], on_line=lambda *_: machine.link(False), timeout_s=None
            )
        with pytest.raises(HostUnreachable, match=r"within 5 s|cannot be reached"):
            session.transport.run(["true"])
        machine.link(True)
        assert session.transport.run(["true"]).ok


def test_commands_files_and_ports_of_a_container(machine: LabHost, connect: OpenSession) -> None:
    machine.inside(f"cat > /usr/local/bin/pct <<'EOF'\n{PCT}EOF\nchmod 755 /usr/local/bin/pct")
    with connect(machine, container={"kind": "proxmox-ct", "id": 200}) as session:
        inside = session.transport
        assert inside.run(["sh", "-c", "hostname; id -un"]).stdout.split() == ["ct-inside", "root"]
        secret = "canary with 'quotes' and $dollars"
        told = inside.run(["printenv", "SECRET", "PLAIN"], env={"SECRET": secret, "PLAIN": "a b"}, mask=[secret])
        assert told.stdout == f"{secret}\na b\n"
        inside.put_bytes(bytes(range(256)) * 999, "/root/data", mode=0o600)
        assert inside.get_bytes("/root/data") == bytes(range(256)) * 999
        with session.http(scene.PORT) as url, urllib.request.urlopen(f"{url}/whoami", timeout=10) as answer:
            assert json.load(answer)["prefix"] == "/opt/sglang/venv"
        assert inside.run(["sh", "-c", "exit 7"]).exit_code == 7
        assert session.services.status("sglang.service").running


def test_long_work_goes_on_without_the_connection(machine: LabHost, connect: OpenSession) -> None:
    with connect(machine) as session:
        job = session.work("copy")
        job.start(["/bin/sh", "-c", "while [ ! -e /run/go ]; do sleep 0.1; done; echo copied; exit 4"])
    machine.inside("touch /run/go")
    with connect(machine) as session:
        lines: list[str] = []
        assert session.work("copy").wait(60, on_line=lines.append) == 4
        assert "copied" in lines
        session.work("copy").forget()
        assert session.work("copy").exit_code() is None


def test_a_unit_edited_by_hand_is_shown_as_drift(machine: LabHost, connect: OpenSession) -> None:
    with connect(machine) as session:
        source = scene.found(session)
        activation = session.activation()
        assert drift_of(activation, source, source) == []
        machine.inside("sed -i 's/FLAG=1/FLAG=2/' /etc/systemd/system/sglang.service && systemctl daemon-reload")
        (drift,) = drift_of(activation, source, source)
        assert '+Environment="GREETING=hello world" FLAG=2' in drift.diff
        machine.inside("systemctl stop sglang")
        assert [one.what for one in drift_of(activation, source, source)] == ["unit", "service"]


def test_a_host_where_nothing_can_be_written_is_refused_unchanged(machine: LabHost, connect: OpenSession) -> None:
    machine.inside("mount --bind /opt /opt && mount -o remount,ro,bind /opt")
    with connect(machine) as session, pytest.raises(OrchestrateError, match="Read-only file system"):
        scene.found(session)
    assert scene.whoami(machine) is not None


def test_a_host_without_systemd_is_refused(machine: LabHost, connect: OpenSession) -> None:
    machine.inside("chmod 000 /usr/bin/busctl && mv /usr/bin/busctl /usr/bin/busctl.gone")
    with connect(machine) as session, pytest.raises(OrchestrateError, match="systemd cannot be asked"):
        scene.found(session)


def test_a_port_served_by_another_unit_is_named(machine: LabHost, connect: OpenSession) -> None:
    with (
        connect(machine) as session,
        pytest.raises(OrchestrateError, match=r"no unit other.service.*in sglang.service"),
    ):
        find_service(session.releases, session.services, "other.service", scene.PORT)


def test_clean_leaves_the_service_as_it_was_and_nothing_of_ours(
    machine: LabHost, connect: OpenSession, tmp_path: Path
) -> None:
    with connect(machine) as session:
        scene.found(session)
        left = ServiceUnit("sglang-canary.service", ("/bin/sleep", "3600"), restart="no", life_s=1800)
        session.services.install(left)
        session.services.start(left.name)
        assert "30min" in machine.inside("systemctl show -p RuntimeMaxUSec sglang-canary.service")
        session.work("oracle-1").start(["/bin/sleep", "3600"])
        lock.take(session.releases, "r-of-another-machine")
        with open_store(f"sqlite:///{tmp_path}/state.db") as store:
            with pytest.raises(LockedError, match="r-of-another-machine"):
                clean_host(machine.config(), tmp_path, store)
            lock.release(session.releases, "r-of-another-machine")
            removed = clean_host(machine.config(), tmp_path, store)
            assert "/opt/ddtree/releases" in removed
            assert "the unit sglang-canary.service" in removed
            assert "the unit orchestrate-work-oracle-1.service" in removed
            assert machine.inside("ls /etc/systemd/system | grep -c -e ^orchestrate- -e canary || true").strip() == "0"
            assert "inactive" in machine.inside("systemctl is-active sglang-canary.service || true")
            assert machine.inside("ls -d /opt/ddtree 2>/dev/null || true") == ""
            assert scene.whoami(machine) is not None
            assert clean_host(machine.config(), tmp_path, store) == []
