"""The Transport into a Proxmox container: the connection goes to the Proxmox host, commands through `pct exec`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import paramiko

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.transport import quoting, upload
from orchestrator.transport.base import CommandFailed, CommandResult, OnLine
from orchestrator.transport.forward import forwarded
from orchestrator.transport.ssh import SshTransport

# Joins stdin and stdout with a port as seen from inside the container, which may be its loopback.
_RELAY = (
    "import socket, sys, threading\n"
    "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    "def up():\n"
    "    while True:\n"
    "        d = sys.stdin.buffer.raw.read(65536)\n"
    "        if not d: break\n"
    "        s.sendall(d)\n"
    "    s.shutdown(socket.SHUT_WR)\n"
    "threading.Thread(target=up, daemon=True).start()\n"
    "while True:\n"
    "    d = s.recv(65536)\n"
    "    if not d: break\n"
    "    sys.stdout.buffer.write(d); sys.stdout.buffer.flush()\n"
)


class ContainerTransport:
    """See Transport. Commands inside run as root of the container; `pct` itself needs root on the Proxmox host."""

    def __init__(self, outer: SshTransport, container_id: int) -> None:
        self._outer = outer
        self._id = container_id
        self._sudo = outer.settings.user != "root"

    @property
    def host(self) -> str:
        return self._outer.host

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = 60.0,
        sudo: bool = False,
        check: bool = False,
        on_line: OnLine | None = None,
        mask: Sequence[str] = (),
    ) -> CommandResult:
        inner = quoting.build(argv, env=env, cwd=cwd, secrets=mask)
        result = self._outer.run(
            self._pct(inner.script),
            stdin=inner.stdin_head + (stdin or b""),
            timeout_s=timeout_s,
            sudo=self._sudo,
            on_line=on_line,
            mask=mask,
        )
        if result.exit_code == 255 and not self._running():
            raise OrchestrateError(
                f"container {self._id} on host {self.host!r} is not running; start it with `pct start {self._id}`."
            )
        if check and not result.ok:
            said = (result.stderr.strip() or result.stdout.strip()).splitlines()[-1:] or ["no output"]
            raise CommandFailed(
                f"{argv[0]!r} in container {self._id} of host {self.host!r} ended with exit code {result.exit_code}: "
                f"{said[0]}.",
                result,
            )
        return CommandResult(tuple(argv), result.exit_code, result.stdout, result.stderr, result.duration_s)

    def put_file(self, local: str, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        with open(local, "rb") as source:
            self.put_bytes(source.read(), remote, mode=mode)

    def put_bytes(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        digest = hashlib.sha256(data).hexdigest()
        part = upload.part_name(remote, digest, 0)
        script = 'umask 077; cat > "$1"'
        self.run(["/bin/sh", "-c", script, "sh", part], stdin=data, check=True, timeout_s=3600)
        done = self.run(["/bin/sh", "-c", upload.FINISH, "sh", part, remote, f"{mode:o}", digest], timeout_s=600)
        if not done.ok:
            self.run(["rm", "-f", part])
            raise OrchestrateError(
                f"{remote} in container {self._id} of host {self.host!r} could not be put in place "
                f"({done.stderr.strip() or 'it arrived damaged'}); check the folder and its free space."
            )

    def get_bytes(self, remote: str, *, sudo: bool = False, max_bytes: int = 64 << 20) -> bytes:
        script = 'test -e "$1" || exit 66; head -c "$2" "$1" | base64'
        done = self.run(["/bin/sh", "-c", script, "sh", remote, str(max_bytes + 1)], timeout_s=300)
        if done.exit_code == 66:
            raise FileNotFoundError(f"{remote} does not exist in container {self._id} of host {self.host!r}")
        if not done.ok:
            raise OrchestrateError(f"{remote} in container {self._id} cannot be read ({done.stderr.strip()}).")
        data = base64.b64decode(done.stdout)
        if len(data) > max_bytes:
            raise UsageError(f"{remote} in container {self._id} has more than {max_bytes} bytes.")
        return data

    def forward(self, remote_port: int, remote_host: str = "127.0.0.1") -> AbstractContextManager[int]:
        script = quoting.build(["python3", "-u", "-c", _RELAY, remote_host, str(remote_port)]).script

        def open_channel(_origin: tuple[str, int]) -> paramiko.Channel:
            return self._outer.open_command(self._pct(script), sudo=self._sudo)

        self._outer.connect()
        return forwarded(open_channel)

    def fresh(self) -> ContainerTransport:
        return ContainerTransport(self._outer.fresh(), self._id)

    def when_back(self, check: Callable[[], None]) -> None:
        self._outer.when_back(check)

    def close(self) -> None:
        self._outer.close()

    def _pct(self, script: str) -> list[str]:
        return ["pct", "exec", str(self._id), "--", "/bin/sh", "-c", script]

    def _running(self) -> bool:
        said = self._outer.run(["pct", "status", str(self._id)], sudo=self._sudo)
        return said.ok and "running" in said.stdout
