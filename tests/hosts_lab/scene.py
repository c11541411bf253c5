"""What a user's host looks like before orchestrate comes: a linear service under a hand-written unit."""

from __future__ import annotations

import hashlib
import json
import textwrap
from pathlib import Path

from orchestrator.hosts.session import HostSession
from orchestrator.release.build import BuildPlan
from orchestrator.release.found import find_service
from orchestrator.release.launch import with_flags
from orchestrator.release.manifest import Manifest
from orchestrator.release.wheels import build_wheel
from tests.hosts_lab.lab import HERE, STATE, LabHost

PORT = 30000
SITE = "/opt/sglang/venv/lib/python3.11/site-packages/sglang"
UNIT = f"""\
[Unit]
Description=SGLang, linear DFlash (hand-written)

[Service]
ExecStart=/opt/sglang/venv/bin/python -m sglang.serve --port {PORT} --algorithm LINEAR --note "100%% sure; costs $$5"
Environment="GREETING=hello world" FLAG=1
User=deploy
Restart=on-failure
RestartSec=200ms

[Install]
WantedBy=multi-user.target
"""


def host(name: str, more: dict[str, bytes] | None = None) -> LabHost:
    """A booted host whose linear service runs and is enabled; `more` files lie on its disk."""
    files = {
        f"{SITE}/__init__.py": b"",
        f"{SITE}/serve.py": (HERE / "standin.py").read_bytes(),
        "/etc/systemd/system/sglang.service": UNIT.encode(),
        **(more or {}),
    }
    machine = LabHost(name, files).up()
    machine.inside("systemctl daemon-reload && systemctl enable -q --now sglang.service")
    return machine


def plugin_wheel(payload: bytes, folder: Path | None = None) -> Path:
    """A plugin that says what it overrides and carries a payload, so that a half-installed one is noticed."""
    digest = hashlib.sha256(payload).hexdigest()[:8]
    source = (folder or STATE / "cache") / f"plugin-{digest}" / "lab_plugin"
    package = source / "lab_plugin"
    package.mkdir(parents=True, exist_ok=True)
    (source / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["setuptools>=65"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "lab-plugin"
        version = "1.0"
        [tool.setuptools]
        packages = ["lab_plugin"]
        package-data = {lab_plugin = ["payload.bin"]}
        """)
    )
    (package / "__init__.py").write_text("")
    (package / "payload.bin").write_bytes(payload)
    (package / "__main__.py").write_text(
        f"print({json.dumps(json.dumps({'hooks': [{'target': 'sglang.serve.Handler'}]}))})\n"
    )
    return build_wheel(source, source.parent / "wheels")


def payload_digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def found(session: HostSession) -> Manifest:
    return find_service(session.releases, session.services, session.unit, PORT)


def plan(source: Manifest, wheel: Path) -> BuildPlan:
    launch = source.launch.model_copy(update={"argv": with_flags(source.launch.argv, {"--algorithm": "TREE"})})
    return BuildPlan(source, launch, wheel=wheel, plugin_module="lab_plugin")


def whoami(machine: LabHost) -> dict[str, object] | None:
    """What serves the port, asked inside the host (no network, no SSH); None when nothing answers."""
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/whoami', timeout=3).read().decode())"
    answer = machine.inside(f'/usr/bin/python3 -I -c "{code}" 2>/dev/null || true').strip()
    return dict(json.loads(answer)) if answer else None
