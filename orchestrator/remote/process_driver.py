"""Services on a host without systemd: a small supervisor script per service, in one folder per service.

Not systemd: nothing starts again after a reboot of the host.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.secrets import Hide, secret_words
from orchestrator.remote.script import source
from orchestrator.remote.services import Definition, Override, RestorePlan, ServiceStatus, ServiceUnit
from orchestrator.transport.base import Transport

FOLDER = ".orchestrate/services"


class ProcessDriver:
    """Implements ServiceDriver; `home` is the absolute home folder of the login user on the host.

    hide: is told every key that somebody put into a service's command line, so that no output shows it.
    """

    kind = "process"

    def __init__(self, transport: Transport, home: str, hide: Hide = lambda *_values: None) -> None:
        self._transport, self._hide = transport, hide
        self._base = posixpath.join(home, FOLDER)

    def install(self, unit: ServiceUnit) -> None:
        folder = self.folder(unit.name)
        self._transport.run(["mkdir", "-p", "-m", "700", folder], check=True)
        self._transport.put_bytes(source("supervisor"), posixpath.join(folder, "supervisor.py"), mode=0o700)
        document = {
            "name": unit.name,
            "description": unit.description,
            "argv": list(unit.argv),
            "env": dict(unit.env),
            "cwd": unit.cwd,
            "restart": unit.restart,
            "restart_s": unit.restart_s,
            "stop_timeout_s": unit.stop_timeout_s,
        }
        self._write_secrets(folder, unit.secret_env)
        self._put_json(document, posixpath.join(folder, "unit.json"))

    def definition(self, name: str) -> Definition | None:
        unit = self._get_json(posixpath.join(self.folder(name), "unit.json"))
        if unit is None:
            return None
        override = self._get_json(posixpath.join(self.folder(name), "override.json"))
        texts = {posixpath.join(self.folder(name), "unit.json"): _text(unit)}
        env = dict(unit.get("env", {}))
        if override:
            texts[posixpath.join(self.folder(name), "override.json")] = _text(override)
            for gone in override.get("unset_env", ()):
                env.pop(gone, None)
            env.update(override.get("env", {}))
        argv = tuple((override or unit)["argv"])
        self._hide(*secret_words(argv, env))
        return Definition(
            argv=argv,
            env=env,
            cwd=(override or {}).get("cwd") or unit.get("cwd"),
            user=None,
            texts=texts,
            overridden=override is not None,
            release=(override or {}).get("release", ""),
        )

    def render_override(self, name: str, override: Override) -> Mapping[str, str]:
        return {posixpath.join(self.folder(name), "override.json"): _text(_override_document(override))}

    def set_override(self, name: str, override: Override) -> None:
        if override.secret_env:
            self._write_secrets(self.folder(name), override.secret_env)
        for path, text in self.render_override(name, override).items():
            self._transport.put_bytes(text.encode(), path, mode=0o600)

    def clear_override(self, name: str) -> None:
        self._transport.run(["rm", "-f", posixpath.join(self.folder(name), "override.json")], check=True)

    def restore_plan(self, name: str, override: Override | None) -> RestorePlan:
        folder = self.folder(name)
        path = posixpath.join(folder, "override.json")
        files: dict[str, str | None] = {path: None}
        if override is not None:
            files.update(self.render_override(name, override))
        script = posixpath.join(folder, "supervisor.py")
        return RestorePlan(files, tuple(("python3", script, verb, folder) for verb in ("stop", "start")))

    def start(self, name: str) -> None:
        now = self._verb("start", name)
        if now.get("active") == "failed":
            tail = " | ".join(self.logs(name, 5)) or str(now.get("detail", "no log"))
            raise OrchestrateError(f"service {name} on host {self._transport.host!r} ended at once: {tail}.")

    def stop(self, name: str) -> None:
        self._verb("stop", name, timeout_s=600)

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def status(self, name: str) -> ServiceStatus:
        now = self._verb("status", name, missing_ok=True)
        return ServiceStatus(
            active=now.get("active", "inactive"),
            main_pid=int(now.get("main_pid") or 0) if now.get("active") == "active" else 0,
            since=float(now.get("since", 0.0)),
            exit_code=now.get("exit_code"),
            restarts=int(now.get("restarts", 0)),
            detail=str(now.get("detail", "")),
        )

    def logs(self, name: str, lines: int = 100) -> list[str]:
        log = posixpath.join(self.folder(name), "log")
        return self._transport.run(["tail", "-n", str(lines), log]).stdout.splitlines()

    def remove(self, name: str) -> None:
        self._verb("stop", name, timeout_s=600, missing_ok=True)
        self._transport.run(["rm", "-rf", self.folder(name)], check=True)

    def folder(self, name: str) -> str:
        if not name or "/" in name or name.startswith("."):
            raise OrchestrateError(f"{name!r} is no name for a service; use letters, digits, - and _.")
        return posixpath.join(self._base, name)

    def _verb(self, verb: str, name: str, *, timeout_s: float = 60, missing_ok: bool = False) -> dict[str, Any]:
        script = posixpath.join(self.folder(name), "supervisor.py")
        done = self._transport.run(["python3", script, verb, self.folder(name)], timeout_s=timeout_s)
        if done.ok:
            return dict(json.loads(done.stdout.strip().splitlines()[-1]))
        if missing_ok and "No such file or directory" in done.stderr:
            return {}
        said = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise OrchestrateError(
            f"service {name} on host {self._transport.host!r}: {verb} failed ({said[0]}); see its log."
        )

    def _write_secrets(self, folder: str, secrets: Mapping[str, str]) -> None:
        path = posixpath.join(folder, "secret.json")
        if secrets:
            self._transport.put_bytes(json.dumps(dict(secrets)).encode(), path, mode=0o600)

    def _put_json(self, document: Mapping[str, Any], path: str) -> None:
        self._transport.put_bytes(_text(document).encode(), path, mode=0o600)

    def _get_json(self, path: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._transport.get_bytes(path)))
        except FileNotFoundError:
            return None


def _override_document(override: Override) -> dict[str, Any]:
    return {
        "argv": list(override.argv),
        "env": dict(override.env),
        "unset_env": list(override.unset_env),
        "cwd": override.cwd,
        "release": override.release,
    }


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
