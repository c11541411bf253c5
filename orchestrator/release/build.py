"""Builds a patched release: a clone of the serving environment, the plugin installed offline, everything recorded."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import OrchestrateError
from orchestrator.release.launch import Launch, in_environment
from orchestrator.release.manifest import FileEntry, Manifest
from orchestrator.release.store import ReleaseStore
from orchestrator.remote.script import run_script

Progress = Callable[[str, float | None, float | None], None]
CLONEABLE = {"venv", "uv"}
CLONE_TIMEOUT_S = 3600.0
PIP_CHECK = "import pip"


@dataclass(frozen=True)
class BuildPlan:
    """source: the release whose environment is cloned. launch: as for the source environment; its paths are moved.

    wheel None means that nothing is installed. more: wheels that are installed with it, into the clone only.
    """

    source: Manifest
    launch: Launch
    wheel: Path | None = None
    more: tuple[Path, ...] = ()
    plugin_module: str = "sglang_ddtree"
    run_id: str = ""


def release_id(plan: BuildPlan) -> str:
    """The same source, wheels and launch give the same id."""
    wheel = hashlib.sha256(plan.wheel.read_bytes()).hexdigest() if plan.wheel else ""
    parts = [plan.source.id, wheel, plan.launch.identity()]
    parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in plan.more]
    identity = json.dumps(parts, sort_keys=True)
    return f"ddtree-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def build_release(store: ReleaseStore, plan: BuildPlan, progress: Progress) -> Manifest:
    """Build, or return the complete release of an earlier run. A failure removes every trace of the attempt.

    The source environment is hashed before and after: its content must not change.
    """
    name = release_id(plan)
    if store.exists(name):
        progress(f"release {name} exists already", None, None)
        return store.read(name)
    check_cloneable(store, plan.source)
    store.prepare()
    # A clone or pip of an interrupted run may still be at work there: nobody else may build while we hold the host.
    folder = store.layout.release(name) + "/"
    run_script(store.transport, "endstale", {"word": folder}, sudo=store.privileged)
    store.discard(name)
    try:
        manifest = _build(store, plan, name, progress)
    except BaseException:
        _remove_quietly(store, name)
        raise
    store.write(manifest)
    return manifest


def with_launch(base: Manifest, source: Manifest, launch: Launch, kind: Literal["ddtree", "dflash"]) -> Manifest:
    """`base` started with another command on the unit of `source`: a release of its own, nothing is copied.

    A release never changes once it is written, so another budget or another replica is another release. The result is
    not written yet; it is `base` itself when nothing differs.
    """
    if (base.kind, base.unit, base.launch) == (kind, source.unit, launch):
        return base
    clone = base.venv_release
    identity = json.dumps([clone or source.id, source.unit, launch.identity()], sort_keys=True)
    name = f"{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    changes = {"id": name, "kind": kind, "unit": source.unit, "launch": launch, "venv_of": clone, "texts": {}}
    return base.model_copy(update={**changes, "source_release": source.id})


def check_cloneable(store: ReleaseStore, source: Manifest) -> None:
    """Refuse by name what a hard-link clone cannot reproduce."""
    kind, prefix = source.environment.kind, source.environment.prefix
    where = f"host {store.transport.host!r}: {source.unit} imports SGLang from"
    if kind == "conda":
        raise OrchestrateError(
            f"{where} the conda environment {prefix}, whose files hold its own path and cannot be cloned this "
            "way; install "
            "SGLang into a venv (python -m venv) and point the unit there."
        )
    if kind not in CLONEABLE:
        raise OrchestrateError(
            f"{where} the system's own Python ({prefix}); install SGLang into a venv (python -m venv) and point "
            "the unit "
            "there."
        )
    if source.environment.package_kind in ("user-site", "other-environment"):
        raise OrchestrateError(
            f"{where} {source.environment.package_path}, outside its environment {prefix}; install SGLang into that "
            "environment, since a clone of it would not hold the engine."
        )


def _build(store: ReleaseStore, plan: BuildPlan, name: str, progress: Progress) -> Manifest:
    prefix, venv = plan.source.environment.prefix, store.layout.venv(name)
    progress(f"hashing {prefix}", None, None)
    before = store.tree_digest(prefix)
    store.sh('mkdir -p "$1"', store.layout.release(name))
    progress(f"cloning {prefix}", 0.0, float(before.files))
    clone = _clone(store, prefix, venv, before.files, progress)
    wheel = _install(store, plan, name, venv, progress) if plan.wheel else None
    progress("listing what differs from the source environment", None, None)
    differs = run_script(
        store.transport,
        "treefacts",
        {"source": prefix, "clone": venv},
        sudo=store.privileged,
        timeout_s=CLONE_TIMEOUT_S,
    )
    after = store.tree_digest(prefix)
    if after != before:
        raise OrchestrateError(
            f"host {store.transport.host!r}: {prefix} changed while release {name} was built; something else "
            "writes to it, "
            "so find out what (pip? an upgrade?) and run again."
        )
    launch = in_environment(plan.launch, prefix, venv)
    return Manifest(
        id=name,
        kind="ddtree",
        host=store.transport.host,
        unit=plan.source.unit,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=plan.run_id,
        launch=launch,
        environment=plan.source.environment,
        source_release=plan.source.id,
        source_digest=before,
        clone_mode=clone["mode"],
        outside=tuple(clone["outside"]),
        wheel=wheel,
        added=tuple(FileEntry(**row) for row in differs["added"]),
        changed=tuple(FileEntry(**row) for row in differs["changed"]),
        removed=tuple(differs["removed"]),
        overrides=_overrides(store, plan, venv) if plan.wheel else (),
    )


def _clone(store: ReleaseStore, prefix: str, venv: str, files: int, progress: Progress) -> dict[str, Any]:
    def on_line(_stream: str, line: str) -> None:
        count, _, word = line.partition(" ")
        if word == "files" and count.isdigit():
            progress(f"cloning {prefix}", float(count), float(files))

    answer = run_script(
        store.transport,
        "cloneenv",
        {"source": prefix, "target": venv},
        sudo=store.privileged,
        timeout_s=CLONE_TIMEOUT_S,
        on_line=on_line,
    )
    return dict(answer)


def _install(store: ReleaseStore, plan: BuildPlan, name: str, venv: str, progress: Progress) -> FileEntry:
    """Install the wheel with the clone's own pip: no registry, no dependencies, no cache."""
    assert plan.wheel is not None
    progress(f"installing {plan.wheel.name}", None, None)
    python = posixpath.join(venv, "bin", "python")
    targets = []
    for wheel in (plan.wheel, *plan.more):
        targets.append(posixpath.join(store.layout.release(name), wheel.name))
        store.transport.put_file(str(wheel), targets[-1], sudo=store.privileged)
    if not store.transport.run([python, "-c", PIP_CHECK], sudo=store.privileged).ok:
        # uv makes environments without pip; ensurepip carries its own copy and needs no network.
        store.transport.run(
            [python, "-m", "ensurepip", "--default-pip"], sudo=store.privileged, check=True, timeout_s=300
        )
    store.transport.run(
        [python, "-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check",
         "--force-reinstall", "--no-input", *targets],
        env={"PIP_CONFIG_FILE": "/dev/null"},
        sudo=store.privileged,
        check=True,
        timeout_s=600,
    )  # fmt: skip
    return FileEntry(
        path=plan.wheel.name,
        sha256=hashlib.sha256(plan.wheel.read_bytes()).hexdigest(),
        bytes=plan.wheel.stat().st_size,
    )


def _overrides(store: ReleaseStore, plan: BuildPlan, venv: str) -> tuple[Any, ...]:
    """What the plugin says that it replaces, asked in a process of the clone."""
    python = posixpath.join(venv, "bin", "python")
    done = store.transport.run(
        [python, "-m", plan.plugin_module, "hooks", "--json"],
        env=plan.launch.env,
        sudo=store.privileged,
        check=True,
        timeout_s=300,
    )
    try:
        answer = read_document(done.stdout)
    except ValueError as error:
        raise OrchestrateError(
            f"host {store.transport.host!r}: the plugin in {venv} does not list what it overrides; its wheel is "
            "not right."
        ) from error
    rows = answer.get("hooks", [])
    if not rows:
        raise OrchestrateError(
            f"host {store.transport.host!r}: the plugin in {venv} lists no override; its wheel is empty."
        )
    return tuple(rows)


def read_document(text: str) -> dict[str, Any]:
    """The JSON object in what a program printed, whatever it said before; ValueError without one."""
    start = text.find("{")
    answer = json.loads(text[start:]) if start >= 0 else None
    if not isinstance(answer, dict):
        raise ValueError("no JSON object")
    return answer


def _remove_quietly(store: ReleaseStore, name: str) -> None:
    try:
        store.discard(name)
    except OrchestrateError:
        return  # the host is gone: an incomplete release never counts, and the next run or prune removes it
