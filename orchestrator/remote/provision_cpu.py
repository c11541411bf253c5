"""Gives a host without a GPU what a user starts from: its own SGLang environment, a trained pair, a linear service."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import OrchestrateError
from orchestrator.release import wheels
from orchestrator.remote.pip import Progress, operator_settings, pip_install
from orchestrator.remote.script import run_script
from orchestrator.remote.services import ServiceDriver, ServiceUnit
from orchestrator.transport.base import Transport

STAMP = "orchestrate-provision.json"
BASE_VARIABLE = "ORCHESTRATE_ENGINE_BASE"  # an environment made by this module, for hosts that come and go
PYTHON_CHECK = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3])"
SUPPORTED = ((3, 11), (3, 13))


@dataclass(frozen=True)
class CpuHost:
    """What provisioning needs to know. Paths are absolute on the host; pair is a folder name under engine/models."""

    transport: Transport
    services: ServiceDriver
    home: str
    unit: str
    port: int
    pair: str
    args: tuple[str, ...] = ()
    same_machine: bool = True
    stop_timeout_s: float = 60.0

    @property
    def venv(self) -> str:
        return posixpath.join(self.home, "opt", "sglang", "venv")

    @property
    def python(self) -> str:
        return posixpath.join(self.venv, "bin", "python")

    @property
    def model_folder(self) -> str:
        return posixpath.join(self.home, "models", self.pair)


def provision_environment(host: CpuHost, wheel_dir: Path, progress: Progress) -> list[str]:
    """The venv with the real SGLang for CPU, from the pinned lists of engine/sglang_cpu and its wheel."""
    source = wheels.engine_folder() / wheels.CPU_ENGINE
    wheel = wheels.build_cpu_engine_wheel(wheel_dir)
    version = _python_version(host)
    texts = [(source / name).read_text() for name in ("requirements.txt", "requirements-nodeps.txt")]
    wanted = hashlib.sha256("\0".join([*texts, wheel.parent.name, version]).encode()).hexdigest()
    if _stamp(host).get("wanted") == wanted:
        return []
    if _clone_base(host, wanted, progress):
        return [f"environment {host.venv} (clone of {os.environ[BASE_VARIABLE]})"]
    progress(f"making {host.venv} with Python {version}", None, None)
    host.transport.run(["mkdir", "-p", posixpath.dirname(host.venv)], check=True)
    host.transport.run(["python3", "-m", "venv", host.venv], check=True, timeout_s=300)
    folder = posixpath.join(host.venv, "provision")
    host.transport.run(["mkdir", "-p", folder], check=True)
    names = [posixpath.join(folder, name) for name in ("requirements.txt", "requirements-nodeps.txt", wheel.name)]
    for name, text in zip(names, texts, strict=False):
        host.transport.put_bytes(text.encode(), name)
    host.transport.put_file(str(wheel), names[2])
    env = operator_settings(same_machine=host.same_machine)
    extra = ["--extra-index-url", os.environ["TORCH_INDEX_URL"]] if os.environ.get("TORCH_INDEX_URL") else []
    count = sum(1 for line in texts[0].splitlines() if line.strip() and not line.startswith("#"))
    pip_install(host.transport, host.python, [*extra, "-r", names[0]], env=env, progress=progress, expected=count)
    pip_install(host.transport, host.python, ["--no-deps", "-r", names[1]], env=env, progress=progress)
    offline = ["--no-index", "--no-deps", "--force-reinstall", names[2]]
    pip_install(host.transport, host.python, offline, env={}, progress=progress)
    _prove_import(host, progress)
    stamp = json.dumps({"wanted": wanted, "python": version, "wheel": wheel.name})
    host.transport.put_bytes(stamp.encode(), posixpath.join(host.venv, STAMP))
    return [f"environment {host.venv}"]


def _clone_base(host: CpuHost, wanted: str, progress: Progress) -> bool:
    """Clone an equal environment that another embedded host of this machine has; False when there is none."""
    base = os.environ.get(BASE_VARIABLE)
    if not base or not host.same_machine or _stamp(host, base).get("wanted") != wanted:
        return False
    progress(f"cloning {base}", None, None)
    host.transport.run(["rm", "-rf", host.venv], check=True, timeout_s=600)
    host.transport.run(["mkdir", "-p", posixpath.dirname(host.venv)], check=True)
    run_script(host.transport, "cloneenv", {"source": base, "target": host.venv}, timeout_s=1800)
    _prove_import(host, progress)
    return True


def provision_models(host: CpuHost, progress: Progress) -> list[str]:
    """The trained pair, file by file; a file whose SHA-256 already fits is left alone."""
    source = wheels.engine_folder() / "models" / host.pair
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise OrchestrateError(f"{source} holds no model; check out the repository whole, or train it with its script.")
    names = [path.relative_to(source).as_posix() for path in files]
    present = _sha256_on_host(host, names)
    missing = [
        (path, name)
        for path, name in zip(files, names, strict=True)
        if present.get(name) != hashlib.sha256(path.read_bytes()).hexdigest()
    ]
    if missing:
        folders = {posixpath.dirname(posixpath.join(host.model_folder, name)) for _, name in missing}
        host.transport.run(["mkdir", "-p", *sorted(folders)], check=True)
    for index, (path, name) in enumerate(missing, 1):
        progress(f"copying {host.pair}/{name}", float(index), float(len(missing)))
        host.transport.put_file(str(path), posixpath.join(host.model_folder, name))
    return [f"model {host.model_folder}"] if missing else []


def provision_service(host: CpuHost, progress: Progress, *, restart: bool) -> list[str]:
    """The linear DFLASH service, installed and started; a unit that serves a release of ours is left alone."""
    unit = linear_unit(host)
    found = host.services.definition(host.unit)
    same = found is not None and found.argv == unit.argv and dict(found.env) == dict(unit.env)
    if found is not None and found.overridden:
        return []
    changed = []
    if not same:
        host.services.install(unit)
        changed.append(f"unit {host.unit}")
    running = host.services.status(host.unit).running
    if running and (restart or not same):
        progress(f"restarting {host.unit}", None, None)
        host.services.restart(host.unit)
        changed.append(f"restarted {host.unit}")
    elif not running:
        progress(f"starting {host.unit}", None, None)
        host.services.start(host.unit)
        changed.append(f"started {host.unit}")
    return changed


def linear_unit(host: CpuHost) -> ServiceUnit:
    """The service a user starts from: linear DFLASH with the pair's target and draft."""
    argv: Sequence[str] = (
        host.python, "-m", "sglang_cpu", "launch",
        "--model-path", posixpath.join(host.model_folder, "target"),
        "--speculative-algorithm", "DFLASH",
        "--speculative-draft-model-path", posixpath.join(host.model_folder, "draft"),
        "--host", "127.0.0.1", "--port", str(host.port), *host.args,
    )  # fmt: skip
    return ServiceUnit(
        name=host.unit,
        argv=tuple(argv),
        env={"SGLANG_USE_CPU_ENGINE": "1"},
        description=f"SGLang with linear DFLASH ({host.pair}, CPU)",
        stop_timeout_s=host.stop_timeout_s,
    )


def _python_version(host: CpuHost) -> str:
    done = host.transport.run(["python3", "-c", PYTHON_CHECK])
    version = done.stdout.strip()
    if not done.ok:
        raise OrchestrateError(
            f"host {host.transport.host!r}: its python3 cannot make environments; install python3-venv there."
        )
    major, minor = (int(part) for part in version.split(".")[:2])
    if not SUPPORTED[0] <= (major, minor) <= SUPPORTED[1]:
        raise OrchestrateError(
            f"host {host.transport.host!r}: SGLang for CPU needs Python 3.11 to 3.13, it has {version}."
        )
    return version


def _prove_import(host: CpuHost, progress: Progress) -> None:
    progress("checking that SGLang for CPU imports", None, None)
    host.transport.run([host.python, "-m", "sglang_cpu", "doctor"], check=True, timeout_s=300)


def _stamp(host: CpuHost, venv: str | None = None) -> Mapping[str, str]:
    try:
        return dict(json.loads(host.transport.get_bytes(posixpath.join(venv or host.venv, STAMP))))
    except (FileNotFoundError, ValueError):
        return {}


def _sha256_on_host(host: CpuHost, names: Sequence[str]) -> dict[str, str]:
    script = 'cd "$0" 2>/dev/null || exit 0; for f in "$@"; do [ -f "$f" ] && sha256sum "$f"; done; exit 0'
    done = host.transport.run(["/bin/sh", "-c", script, host.model_folder, *names], check=True, timeout_s=300)
    pairs = (line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    return {name: digest for digest, name in pairs}
