"""Services under systemd: units and drop-ins rendered from templates, read back exactly as systemd understands them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.secrets import Hide, secret_words
from orchestrator.remote import systemd_text
from orchestrator.remote.script import run_script
from orchestrator.remote.services import Active, Definition, Override, RestorePlan, ServiceStatus, ServiceUnit
from orchestrator.transport.base import CommandResult, Transport

DROP_IN = "50-orchestrate.conf"
OURS = "# Written by orchestrate"
RELEASE = re.compile(r"^# Written by orchestrate for release (\S+);", re.M)
CLD_EXITED = 1
UNIT_NAME = re.compile(r"^[A-Za-z0-9:_.\\@-]+\.(service|timer)$")


@dataclass(frozen=True)
class SystemdScope:
    """System units (root, through sudo) or units of the login user, which need linger to outlive the login."""

    user_mode: bool
    unit_folder: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def systemctl(self) -> tuple[str, ...]:
        return ("systemctl", "--user") if self.user_mode else ("systemctl",)

    @property
    def journalctl(self) -> tuple[str, ...]:
        return ("journalctl", "--user") if self.user_mode else ("journalctl",)

    @property
    def wanted_by(self) -> str:
        return "default.target" if self.user_mode else "multi-user.target"


SYSTEM = SystemdScope(user_mode=False, unit_folder="/etc/systemd/system")


class SystemdDriver:
    """Implements ServiceDriver. `env_folder` (below the host's root) holds the secret environment files, mode 600.

    hide: is told every key that somebody put into a unit's command line, so that no output shows it.
    """

    kind = "systemd"

    def __init__(
        self, transport: Transport, env_folder: str, scope: SystemdScope = SYSTEM, hide: Hide = lambda *_values: None
    ) -> None:
        self._transport = transport
        self._env_folder = env_folder
        self.scope, self._hide = scope, hide

    def install(self, unit: ServiceUnit) -> None:
        text = systemd_text.render(
            "service.unit.j2",
            description=unit.description or unit.name,
            command=systemd_text.command(unit.argv, unit.filled_in),
            environment=systemd_text.assignments(unit.env),
            env_files=[*unit.env_files, *([self._secret_file(unit.name)] if unit.secret_env else ())],
            cwd=unit.cwd or "",
            user="" if self.scope.user_mode else unit.user or "",
            restart=unit.restart,
            restart_s=f"{unit.restart_s:g}",
            start_timeout_s=f"{unit.start_timeout_s:g}",
            stop_timeout_s=f"{unit.stop_timeout_s:g}",
            life_s="" if unit.life_s is None else f"{unit.life_s:g}",
            after_stop=systemd_text.command(unit.after_stop) if unit.after_stop else "",
            wanted_by=self.scope.wanted_by,
        )
        self._write_secrets(unit.name, unit.secret_env)
        self.write_unit(unit.name, text, mode=_mode(unit.argv, unit.env))
        self.reload()

    def definition(self, name: str) -> Definition | None:
        facts = self._facts(name)
        if facts is None:
            return None
        if facts["load_state"] != "loaded":
            raise OrchestrateError(
                f"host {self._transport.host!r}: systemd cannot load {name} ({facts['load_state']}); look at "
                f"`systemctl status {name}` there."
            )
        env = dict(pair.split("=", 1) for pair in facts["environment"])
        ours = facts["texts"].get(self.drop_in_path(name), "")
        release, own = RELEASE.search(ours), self._secret_file(name)
        self._hide(*secret_words(facts["argv"], env))
        return Definition(
            argv=systemd_text.expanded(facts["argv"], env),
            env=env,
            cwd=facts["cwd"] or None,
            user=facts["user"] or None,
            texts=facts["texts"],
            overridden=bool(ours),
            release=release.group(1) if release else "",
            env_files=tuple(file for file in facts["environment_files"] if file != own),
            filled_in=systemd_text.unknown(facts["argv"], env),
        )

    def render_override(self, name: str, override: Override) -> Mapping[str, str]:
        text = systemd_text.render(
            "override.conf.j2",
            release=override.release or "?",
            command=systemd_text.command(override.argv, override.filled_in),
            environment=systemd_text.assignments(override.env),
            unset_env=" ".join(override.unset_env),
            env_file=self._secret_file(name) if override.secret_env else "",
            cwd=override.cwd or "",
        )
        return {self.drop_in_path(name): text}

    def set_override(self, name: str, override: Override) -> None:
        self._write_secrets(name, override.secret_env)
        self._root(["mkdir", "-p", posixpath.dirname(self.drop_in_path(name))], check=True)
        for path, text in self.render_override(name, override).items():
            self._put(text, path, mode=_mode(override.argv, override.env))
        self.reload()

    def clear_override(self, name: str) -> None:
        path = self.drop_in_path(name)
        self._root(["rm", "-f", path], check=True)
        # Only an empty folder goes: the user may have drop-ins of their own there.
        self._root(["rmdir", posixpath.dirname(path)])
        self.reload()

    def restore_plan(self, name: str, override: Override | None) -> RestorePlan:
        files: dict[str, str | None] = {self.drop_in_path(name): None}
        if override is not None:
            files.update(self.render_override(name, override))
        systemctl = self.scope.systemctl
        forget = ("/bin/sh", "-c", f"{' '.join(systemctl)} reset-failed {name}; true")
        return RestorePlan(
            files,
            commands=((*systemctl, "daemon-reload"), forget, (*systemctl, "restart", name)),
            # At boot the unit waits for us: a blocking restart would wait for itself.
            boot_commands=((*systemctl, "daemon-reload"), (*systemctl, "--no-block", "restart", name)),
        )

    def start(self, name: str) -> None:
        self._start("start", name)

    def restart(self, name: str) -> None:
        """In one command, which systemd carries out to the end also when the connection is lost."""
        self._start("restart", name)

    def _start(self, verb: str, name: str) -> None:
        self._root([*self.scope.systemctl, "reset-failed", name])
        done = self._root([*self.scope.systemctl, verb, name], timeout_s=None)
        if not done.ok:
            tail = " | ".join(self.logs(name, 5)) or done.stderr.strip()
            raise OrchestrateError(f"host {self._transport.host!r}: {name} did not start: {tail}.")

    def stop(self, name: str) -> None:
        done = self._root([*self.scope.systemctl, "stop", name], timeout_s=None)
        if not done.ok and self._facts(name) is not None:
            raise OrchestrateError(f"host {self._transport.host!r}: {name} did not stop: {done.stderr.strip()}.")

    def status(self, name: str) -> ServiceStatus:
        facts = self._facts(name)
        if facts is None:
            return ServiceStatus("inactive", detail="there is no such unit")
        active = facts["active"] if facts["active"] != "reloading" else "active"
        detail = "" if facts["result"] == "success" else f"{facts['sub']}, result {facts['result']}"
        code = facts["exit_code"]
        if code is not None and facts["exit_kind"] != CLD_EXITED:
            code = 128 + code
        return ServiceStatus(
            active=cast(Active, active),
            main_pid=facts["main_pid"],
            since=facts["since"],
            exit_code=code,
            restarts=facts["restarts"],
            detail=detail,
        )

    def logs(self, name: str, lines: int = 100) -> list[str]:
        done = self._root([*self.scope.journalctl, "-u", name, "-n", str(lines), "-o", "cat", "--no-pager", "-q"])
        return done.stdout.splitlines()

    def remove(self, name: str) -> None:
        facts = self._facts(name)
        if facts is None:
            return
        self.clear_override(name)
        self._root(["rm", "-f", self._secret_file(name)])
        if facts["texts"].get(facts["fragment"], "").startswith(OURS):
            self.stop(name)
            self._root([*self.scope.systemctl, "disable", name])
            self._root(["rm", "-f", facts["fragment"]], check=True)
            self.reload()

    def installed(self, prefix: str) -> list[str]:
        """Names of services that begin so and whose unit files were written here, whether they run or not."""
        script = 'cd "$1" && grep -l "^$2" -- "$3"*.service 2>/dev/null || true'
        done = self._root(["/bin/sh", "-c", script, "sh", self.scope.unit_folder, OURS, prefix])
        return done.stdout.split()

    def enable(self, name: str) -> None:
        """Start at boot from now on."""
        self._root([*self.scope.systemctl, "enable", name], check=True)

    def disable(self, name: str) -> None:
        self._root([*self.scope.systemctl, "disable", "--now", name])

    def run_apart(self, name: str, argv: Sequence[str]) -> None:
        """Begin a command that goes on without the login, as a unit that lasts as long as it and leaves no file."""
        begin = ["systemd-run", *self.scope.systemctl[1:], "--collect", "--quiet", f"--unit={name}", "--", *argv]
        self._root(begin, check=True)

    def reload(self) -> None:
        self._root([*self.scope.systemctl, "daemon-reload"], check=True)

    def write_unit(self, name: str, text: str, *, mode: int = 0o644) -> None:
        """Put a unit file in place; the caller reloads."""
        if not UNIT_NAME.match(name):
            raise OrchestrateError(f"{name!r} is no name of a systemd unit; use something like sglang.service.")
        self._root(["mkdir", "-p", self.scope.unit_folder], check=True)
        self._put(text, posixpath.join(self.scope.unit_folder, name), mode=mode)

    def remove_units(self, names: Sequence[str]) -> None:
        self._root(["rm", "-f", *(posixpath.join(self.scope.unit_folder, name) for name in names)], check=True)
        self.reload()

    def drop_in_path(self, name: str) -> str:
        return posixpath.join(self.scope.unit_folder, f"{name}.d", DROP_IN)

    def _secret_file(self, name: str) -> str:
        return posixpath.join(self._env_folder, f"{name}.env")

    def _write_secrets(self, name: str, secret_env: Mapping[str, str]) -> None:
        if secret_env:
            self._root(["mkdir", "-p", "-m", "700", self._env_folder], check=True)
            self._put(systemd_text.environment_file(secret_env), self._secret_file(name), mode=0o600)

    def _facts(self, name: str) -> dict[str, Any] | None:
        wish = {"unit": name, "user": self.scope.user_mode}
        answer = run_script(self._transport, "unitfacts", wish, sudo=not self.scope.user_mode, env=dict(self.scope.env))
        return None if answer is None else dict(answer)

    def _put(self, text: str, path: str, *, mode: int = 0o644) -> None:
        self._transport.put_bytes(text.encode(), path, mode=mode, sudo=not self.scope.user_mode)

    def _root(self, argv: Sequence[str], *, check: bool = False, timeout_s: float | None = 60.0) -> CommandResult:
        return self._transport.run(
            argv, sudo=not self.scope.user_mode, check=check, timeout_s=timeout_s, env=self.scope.env
        )


def _mode(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """A definition that somebody put a key into is written so that only its owner reads it."""
    return 0o600 if secret_words(argv, env) else 0o644


def user_scope(transport: Transport, home: str) -> SystemdScope:
    """The login user's own units, for hosts with `sudo: none`. Raises unless they may outlive the login (linger)."""
    script = (
        'uid=$(id -u); name=$(id -un); [ -e "/var/lib/systemd/linger/$name" ] || loginctl enable-linger 2>/dev/null; '
        '[ -e "/var/lib/systemd/linger/$name" ] || exit 3; [ -d "/run/user/$uid" ] || exit 4; echo "$uid"'
    )
    done = transport.run(["/bin/sh", "-c", script])
    if not done.ok:
        raise OrchestrateError(
            f"host {transport.host!r}: without sudo the service must be a user unit that outlives the login; let an "
            "administrator run `loginctl enable-linger` for this user, or give sudo in hosts.yaml."
        )
    runtime = f"/run/user/{done.stdout.strip()}"
    env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    return SystemdScope(True, posixpath.join(home, ".config/systemd/user"), env)
