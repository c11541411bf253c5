"""The SSH transport against a real SSH server: commands, files, and every way a connection can fail."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.transport import channel, hostkeys, upload
from orchestrator.transport.base import (
    AuthenticationFailed,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostKeyMismatch,
    HostKeyUnknown,
    HostUnreachable,
    SudoUnavailable,
)
from orchestrator.transport.settings import SshSettings
from orchestrator.transport.ssh import SshTransport

from .proxy import Proxy

Embedded = tuple[Path, SshSettings]
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.fixture
def proxy(embedded: Embedded) -> Iterator[tuple[Proxy, SshSettings]]:
    _, direct = embedded
    assert direct.port is not None
    middle = Proxy(("127.0.0.1", direct.port))
    pinned = direct.pinned_hosts.with_name(f"known_hosts-{middle.port}")
    host_key = paramiko.Ed25519Key(filename=str(direct.pinned_hosts.with_name("host_key")))
    hostkeys.pin(pinned, hostkeys.known_name("127.0.0.1", middle.port), host_key)
    try:
        yield middle, dataclasses.replace(direct, port=middle.port, pinned_hosts=pinned)
    finally:
        middle.close()


def test_exit_code_and_both_outputs_are_kept_apart(transport: SshTransport) -> None:
    result = transport.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")


def test_death_by_a_signal_is_128_plus_its_number(transport: SshTransport) -> None:
    assert transport.run(["sh", "-c", "kill -9 $$"]).exit_code == 137


def test_check_raises_with_the_last_output(transport: SshTransport) -> None:
    with pytest.raises(CommandFailed, match="no such thing") as caught:
        transport.run(["sh", "-c", "echo no such thing >&2; exit 3"], check=True)
    assert caught.value.result.exit_code == 3


@settings(max_examples=40, deadline=None)
@given(words=st.lists(TEXT, max_size=4), value=TEXT)
def test_arguments_and_environment_arrive_byte_for_byte(
    embedded: Embedded, shared: SshTransport, words: list[str], value: str
) -> None:
    program = "import os, sys, json; print(json.dumps([sys.argv[1:], os.environ['VALUE']]))"
    result = shared.run(["python3", "-X", "utf8", "-c", program, *words], env={"VALUE": value}, check=True)
    assert json.loads(result.stdout) == [words, value]


@settings(max_examples=20, deadline=None)
@given(secret=TEXT.map(lambda text: f"canary-{text}"))  # nothing of our own wrapper looks like that
def test_a_secret_value_arrives_through_stdin_and_stands_in_no_argument_list(shared: SshTransport, secret: str) -> None:
    program = (
        "import os, sys\n"
        "lists = b''.join(open(f'/proc/{p}/cmdline','rb').read() for p in (os.getpid(), os.getppid()))\n"
        "value = os.environ['SECRET'].encode()\n"
        "sys.stdout.buffer.write(b'%d %d ' % (value in lists, len(value)) + sys.stdin.buffer.read())\n"
    )
    result = shared.run(["python3", "-c", program], env={"SECRET": secret}, mask=[secret], stdin=b"rest", check=True)
    assert result.stdout == f"0 {len(secret.encode())} rest"


def test_a_secret_in_an_argument_is_refused(transport: SshTransport) -> None:
    with pytest.raises(UsageError, match="secret"):
        transport.run(["echo", "token-12345"], mask=["token-12345"])


def test_lines_arrive_while_the_command_runs(transport: SshTransport, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    seen: list[tuple[str, str]] = []

    def on_line(stream: str, line: str) -> None:
        seen.append((stream, line))
        if line == "first":
            answer.touch()

    # The command ends only when its first line has already been seen here.
    script = f"echo first; while [ ! -e {answer} ]; do sleep 0.02; done; echo second >&2; printf third"
    transport.run(["sh", "-c", script], on_line=on_line, timeout_s=30, check=True)
    assert sorted(seen) == [("stderr", "second"), ("stdout", "first"), ("stdout", "third")]


def test_a_timed_out_command_is_stopped_on_the_host_with_its_children(transport: SshTransport) -> None:
    with pytest.raises(CommandTimeout):
        transport.run(["sh", "-c", "sleep 98765 & sleep 98765"], timeout_s=0.5)
    left = transport.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [9]8765'"])
    assert left.stdout.strip() == "0"


def test_a_command_that_prints_without_end_is_stopped(transport: SshTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandTimeout):
        transport.run(["yes", "flood98765"], timeout_s=0.5)
    monkeypatch.setattr(channel, "MAX_OUTPUT", 1 << 20)
    with pytest.raises(OrchestrateError, match="printed more than"):
        transport.run(["sh", "-c", "yes flood98765 & exit 0"], timeout_s=30)
    left = transport.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'flood[9]8765'"])
    assert left.stdout.strip() == "0"


def test_stdin_of_any_size_reaches_the_command(transport: SshTransport) -> None:
    data = os.urandom(3_000_000)
    assert transport.run(["sha256sum"], stdin=data).stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_command_that_ignores_its_stdin_still_ends(transport: SshTransport) -> None:
    assert transport.run(["head", "-c", "1"], stdin=b"x" * 2_000_000).stdout == "x"


def test_many_commands_share_one_connection(transport: SshTransport) -> None:
    link = transport.connect()
    results: list[str] = []

    def work(number: int) -> None:
        results.append(transport.run(["echo", str(number)]).stdout.strip())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [str(number) for number in range(8)]
    assert transport.connect() is link


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_001])
def test_files_go_up_and_down_unchanged(transport: SshTransport, tmp_path: Path, size: int) -> None:
    data, target = os.urandom(size), str(tmp_path / "file with ' quote")
    transport.put_bytes(data, target, mode=0o640)
    assert transport.get_bytes(target) == data
    assert os.stat(target).st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["file with ' quote"]


def test_an_interrupted_upload_is_resumed(transport: SshTransport, tmp_path: Path) -> None:
    data, target = os.urandom(upload.RESUME_FROM * 2), str(tmp_path / "big")
    part = upload.part_name(target, hashlib.sha256(data).hexdigest(), len(data))
    Path(part).write_bytes(data[: upload.RESUME_FROM])
    with open(part, "rb") as held:  # the same file is continued, not made anew
        transport.put_bytes(data, target)
        assert os.fstat(held.fileno()).st_ino == os.stat(target).st_ino
    assert Path(target).read_bytes() == data


def test_a_damaged_part_is_found_by_its_hash_and_sent_again(transport: SshTransport, tmp_path: Path) -> None:
    data, target = os.urandom(upload.RESUME_FROM * 2), str(tmp_path / "big")
    Path(upload.part_name(target, hashlib.sha256(data).hexdigest(), len(data))).write_bytes(os.urandom(5000))
    transport.put_bytes(data, target)
    assert Path(target).read_bytes() == data


def test_an_upload_that_fails_leaves_the_old_file(transport: SshTransport, tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_text("old")
    with pytest.raises(OrchestrateError, match="missing"):
        transport.put_bytes(b"new", str(tmp_path / "missing" / "file"))
    part = tmp_path / "part"
    part.write_text("damaged on the way")
    done = transport.run(["/bin/sh", "-c", upload.FINISH, "sh", str(part), str(target), "644", "0" * 64])
    assert done.exit_code == upload.CORRUPT
    assert target.read_text() == "old"
    assert not part.exists()


def test_a_missing_remote_file_is_file_not_found(transport: SshTransport) -> None:
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        transport.get_bytes("/nothing-here")


def test_fresh_is_a_second_login(transport: SshTransport) -> None:
    other = transport.fresh()
    try:
        assert other.connect() is not transport.connect()
        assert other.run(["id", "-un"]).stdout.strip() == getpass.getuser()
    finally:
        other.close()


def test_root_is_refused_where_sudo_is_none(transport: SshTransport) -> None:
    with pytest.raises(SudoUnavailable, match="none"):
        transport.run(["id"], sudo=True)


def test_an_unknown_host_key_is_refused_with_its_fingerprint(embedded: Embedded, tmp_path: Path) -> None:
    other = dataclasses.replace(embedded[1], pinned_hosts=tmp_path / "empty")
    with pytest.raises(HostKeyUnknown, match=r"SHA256:.*hosts trust local"):
        SshTransport(other).connect()


def test_another_host_key_is_refused(embedded: Embedded, tmp_path: Path) -> None:
    assert embedded[1].port is not None
    pinned = tmp_path / "pinned"
    key = _new_key(tmp_path / "other")
    hostkeys.pin(pinned, hostkeys.known_name("127.0.0.1", embedded[1].port), key)
    with pytest.raises(HostKeyMismatch, match="another key"):
        SshTransport(dataclasses.replace(embedded[1], pinned_hosts=pinned)).connect()


def test_only_the_generated_key_and_user_may_log_in(embedded: Embedded, tmp_path: Path) -> None:
    _new_key(tmp_path / "other")
    with pytest.raises(AuthenticationFailed):
        SshTransport(dataclasses.replace(embedded[1], identity_file=str(tmp_path / "other"))).connect()
    with pytest.raises(AuthenticationFailed):
        SshTransport(dataclasses.replace(embedded[1], user="somebody")).connect()


def test_keys_pinned_at_once_for_many_hosts_all_stay(tmp_path: Path) -> None:
    path, together = tmp_path / "known_hosts", threading.Barrier(8)
    _new_key(tmp_path / "key")
    key = paramiko.Ed25519Key(filename=str(tmp_path / "key"))

    def pin(number: int) -> None:
        together.wait(10)
        hostkeys.pin(path, f"host-{number}", key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pin, range(8)))
    assert set(hostkeys.read_known_hosts(path).keys()) == {f"host-{number}" for number in range(8)}
    assert sorted(left.name for left in tmp_path.iterdir()) == ["key", "known_hosts"]


def test_a_revoked_key_is_refused(embedded: Embedded, tmp_path: Path) -> None:
    host_key = paramiko.Ed25519Key(filename=str(embedded[1].pinned_hosts.with_name("host_key")))
    user_file = tmp_path / "known_hosts"
    user_file.write_text(f"@revoked * {host_key.get_name()} {host_key.get_base64()}\n")
    with pytest.raises(HostKeyMismatch, match="revoked"):
        SshTransport(dataclasses.replace(embedded[1], user_known_hosts=user_file)).connect()


def test_a_port_without_server_is_unreachable(embedded: Embedded) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    with pytest.raises(HostUnreachable, match="cannot be reached"):
        SshTransport(dataclasses.replace(embedded[1], port=closed)).connect()


def test_the_connect_timeout_fires_when_no_banner_comes(embedded: Embedded) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = dataclasses.replace(embedded[1], port=mute.getsockname()[1], connect_timeout_s=0.5)
        started = time.monotonic()
        with pytest.raises(HostUnreachable):
            SshTransport(silent).connect()
        assert time.monotonic() - started < 5


def test_a_dropped_connection_is_typed_and_the_next_command_reconnects(proxy: tuple[Proxy, SshSettings]) -> None:
    middle, through = proxy
    transport = SshTransport(through)
    try:
        with pytest.raises(ConnectionLost, match="whether it took effect is unknown"):
            transport.run(["sh", "-c", "echo ready; sleep 60"], on_line=lambda *_: middle.cut())
        assert transport.run(["echo", "again"]).stdout == "again\n"
    finally:
        transport.close()


def test_a_silent_host_counts_as_lost_after_the_idle_timeout(proxy: tuple[Proxy, SshSettings]) -> None:
    middle, through = proxy
    transport = SshTransport(dataclasses.replace(through, keepalive_s=0.2, idle_timeout_s=1.0))
    try:
        started = time.monotonic()
        with pytest.raises(ConnectionLost, match="silent"):
            transport.run(["sh", "-c", "echo ready; sleep 60"], on_line=lambda *_: middle.silent.set(), timeout_s=None)
        assert time.monotonic() - started < 20
    finally:
        transport.close()


def test_a_quiet_but_living_host_is_not_given_up(proxy: tuple[Proxy, SshSettings]) -> None:
    _, through = proxy
    transport = SshTransport(dataclasses.replace(through, keepalive_s=0.1, idle_timeout_s=0.5))
    try:
        assert transport.run(["sh", "-c", "sleep 1.5; echo still here"]).stdout == "still here\n"
    finally:
        transport.close()


def test_a_connection_that_breaks_during_an_upload_is_typed(proxy: tuple[Proxy, SshSettings], tmp_path: Path) -> None:
    middle, through = proxy
    transport = SshTransport(dataclasses.replace(through, keepalive_s=0.2, idle_timeout_s=1.0))
    target = tmp_path / "file"
    try:
        transport.connect()
        middle.silent.set()
        with pytest.raises(ConnectionLost):
            transport.put_bytes(os.urandom(8_000_000), str(target))
        assert not target.exists()
    finally:
        transport.close()


def _new_key(path: Path) -> paramiko.Ed25519Key:
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return paramiko.Ed25519Key(filename=str(path))
