"""Releases on a real embedded host: found, cloned, patched, known as good, pruned, locked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import LockedError, OrchestrateError, UsageError
from orchestrator.hosts import lock
from orchestrator.hosts.session import HostSession
from orchestrator.recent import Recent
from orchestrator.release import build
from orchestrator.release.drift import drift_of
from orchestrator.release.found import find_service
from orchestrator.release.launch import Launch, with_flags
from orchestrator.release.manifest import Manifest
from orchestrator.remote.script import run_script
from orchestrator.remote.services import ServiceUnit
from orchestrator.remote.venvs import Environment, environment_of_process
from orchestrator.transport.base import Transport
from tests.release.driving import ask, found, plan_for, quiet, wait_until


def test_the_service_as_found_is_a_release_with_nothing_copied(session: HostSession, serving_venv: Path) -> None:
    manifest = found(session)
    assert manifest.kind == "found"
    assert manifest.environment.prefix == str(serving_venv)
    assert manifest.launch.argv[-2:] == ("--algorithm", "LINEAR")
    assert session.releases.current() == manifest.id
    assert found(session) == manifest
    assert os.listdir(session.releases.layout.release(manifest.id)) == ["manifest.json"]


def test_a_process_is_asked_once_what_it_imports_and_the_next_one_again(
    session: HostSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(transport: Transport, pid: int, *, sudo: bool) -> Environment:
        asked.append(pid)
        return environment_of_process(transport, pid, sudo=sudo)

    def find(recent: Recent) -> Manifest:
        port = session.config.service.port
        return find_service(session.releases, session.services, session.unit, port, recent=recent)

    monkeypatch.setattr("orchestrator.release.found.environment_of_process", counted)
    recent = Recent(fresh_s=3600)
    first = find(recent)
    assert find(recent) == first
    pid = session.services.status("sglang").main_pid
    session.services.restart("sglang")
    ask(session)
    assert find(recent) == first
    assert asked == [pid, session.services.status("sglang").main_pid]
    assert len(set(asked)) == 2


def test_an_unknown_unit_names_who_serves_the_port(session: HostSession) -> None:
    ask(session)  # it listens
    with pytest.raises(OrchestrateError, match=r"no unit other.*pid \d+.*serves port"):
        find_service(session.releases, session.services, "other", session.config.service.port)


def test_a_stopped_service_is_refused(session: HostSession) -> None:
    session.services.stop("sglang")
    with pytest.raises(OrchestrateError, match="not running"):
        found(session)


def test_the_clone_shares_contents_follows_its_own_path_and_leaves_the_source_alone(
    session: HostSession, serving_venv: Path, plugin_wheel: Path
) -> None:
    before = session.releases.tree_digest(str(serving_venv))
    source = found(session)
    manifest = build.build_release(session.releases, plan_for(session, source, plugin_wheel), quiet)
    clone = Path(session.releases.layout.venv(manifest.id))
    module = next((serving_venv / "lib").glob("python3*")) / "site-packages" / "sglang" / "serve.py"
    twin = clone / module.relative_to(serving_venv)
    assert (manifest.clone_mode, twin.stat().st_ino) == ("link", module.stat().st_ino)
    assert str(serving_venv) not in (clone / "bin" / "pip").read_text()
    assert os.readlink(clone / "bin" / "own-link") == str(clone / "bin" / "python")
    where = subprocess.check_output(
        [clone / "bin" / "python", "-c", "import only_there, sys; print(only_there.HERE, sys.prefix)"], text=True
    )
    assert all(part.startswith(str(clone)) for part in where.split())
    # Byte code is written by renaming, so a clone that compiles anew does not touch the shared file.
    subprocess.run([clone / "bin" / "python", "-m", "compileall", "-q", "-f", str(twin.parent)], check=True)
    assert session.releases.tree_digest(str(serving_venv)) == before == manifest.source_digest


def test_the_manifest_lists_every_difference_with_its_hash_and_the_overrides(built: tuple[Manifest, Manifest]) -> None:
    _, release = built
    added = {entry.path: entry for entry in release.added}
    assert any(path.endswith("test_plugin/__main__.py") for path in added)
    assert all(entry.sha256 or entry.link for entry in (*release.added, *release.changed))
    assert any(entry.path == "pyvenv.cfg" for entry in release.changed)
    assert any(entry.path == "bin/pip" for entry in release.changed)
    assert release.removed == ()
    assert release.overrides == ({"target": "sglang.serve.Handler"},)
    assert release.wheel is not None


def test_records_of_rewritten_scripts_are_true(session: HostSession, built: tuple[Manifest, Manifest]) -> None:
    check = (
        "import base64, hashlib, sys\n"
        "from importlib import metadata\n"
        "bad = [str(f) for d in metadata.distributions() for f in d.files or [] if f.hash and base64.urlsafe_b64encode("
        "hashlib.sha256(f.locate().read_bytes()).digest()).rstrip(b'=').decode() != f.hash.value]\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    python = session.releases.layout.venv(built[1].id) + "/bin/python"
    subprocess.run([python, "-c", check], check=True)


def test_across_file_systems_the_clone_is_a_copy(session: HostSession, serving_venv: Path, tmp_path: Path) -> None:
    answer = run_script(
        session.transport, "cloneenv", {"source": str(serving_venv), "target": str(tmp_path / "c"), "copy": True}
    )
    assert answer["mode"] == "copy"
    differs = run_script(session.transport, "treefacts", {"source": str(serving_venv), "clone": str(tmp_path / "c")})
    assert sorted(entry["path"] for entry in differs["changed"]) == sorted(answer["rewritten"])
    assert (differs["added"], differs["removed"]) == ([], [])


def test_too_little_room_is_refused_before_anything_is_written(
    session: HostSession, serving_venv: Path, tmp_path: Path
) -> None:
    wish = {"source": str(serving_venv), "target": str(tmp_path / "c"), "margin_bytes": 1 << 60}
    with pytest.raises(OrchestrateError, match="MiB free"):
        run_script(session.transport, "cloneenv", wish)
    assert not (tmp_path / "c").exists()


def test_a_full_disk_during_the_build_leaves_no_release(
    session: HostSession, plugin_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = found(session)
    plan = plan_for(session, source, plugin_wheel)
    name = build.release_id(plan)

    def full(*_args: object) -> None:
        raise OrchestrateError("no space left on device")

    monkeypatch.setattr(build, "_install", full)
    with pytest.raises(OrchestrateError, match="no space"):
        build.build_release(session.releases, plan, quiet)
    assert not os.path.exists(session.releases.layout.release(name))
    assert session.releases.ids() == [source.id]


def test_a_conda_or_system_environment_is_refused_by_name(session: HostSession) -> None:
    source = found(session)
    for kind, words in (("conda", "conda environment"), ("system", "system's own Python")):
        other = source.model_copy(update={"environment": source.environment.model_copy(update={"kind": kind})})
        with pytest.raises(OrchestrateError, match=words):
            build.check_cloneable(session.releases, other)


def test_building_again_returns_the_same_release(
    session: HostSession, built: tuple[Manifest, Manifest], plugin_wheel: Path
) -> None:
    assert build.build_release(session.releases, plan_for(session, built[0], plugin_wheel), quiet) == built[1]


def test_known_good_needs_evidence_and_a_release(session: HostSession, built: tuple[Manifest, Manifest]) -> None:
    source, release = built
    with pytest.raises(OrchestrateError, match="evidence"):
        session.releases.mark_known_good(source.id, {})
    with pytest.raises(UsageError, match="does not exist"):
        session.releases.mark_known_good("ddtree-000000000000", {"smoke": "ok"})
    session.releases.mark_known_good(source.id, {"smoke": "5 of 5"}, "run-1")
    assert [(one.release, one.evidence["smoke"]) for one in session.releases.known_good()] == [(source.id, "5 of 5")]
    session.releases.forget_known_good(source.id)
    assert session.releases.known_good() == []
    assert release.source_release == source.id


def test_prune_keeps_current_its_source_and_the_known_good(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, release = built
    launch = Launch(argv=("true",))
    old = [release.model_copy(update={"id": f"ddtree-{n:012x}", "launch": launch}) for n in range(3)]
    for manifest in old:
        session.releases.write(manifest)
    os.makedirs(session.releases.layout.release("ddtree-aaaaaaaaaaaa") + "/venv")  # left by a crash
    session.releases.mark_known_good(old[0].id, {"smoke": "ok"})
    gone = session.releases.prune(keep=1)
    assert sorted(gone) == sorted([release.id, old[1].id, "ddtree-aaaaaaaaaaaa"])
    assert set(session.releases.ids()) == {source.id, old[0].id, old[2].id}
    with pytest.raises(UsageError, match="current"):
        session.releases.discard(source.id)


def test_a_damaged_manifest_is_named(session: HostSession, built: tuple[Manifest, Manifest]) -> None:
    Path(session.releases.layout.manifest(built[1].id)).write_text("{}")
    with pytest.raises(OrchestrateError, match="damaged"):
        session.releases.read(built[1].id)


def test_two_operators_at_once_and_a_crashed_ones_lock(session: HostSession) -> None:
    store = session.releases
    with lock.held(store, "run-1"):
        with pytest.raises(LockedError, match="run run-1"), lock.held(store, "run-2"):
            pass
        with lock.held(store, "run-1"):  # the same run, resumed
            pass
    assert lock.lock_status(store) is None
    run_script(session.transport, "hostlock", {"path": store.layout.lock, "verb": "take", "run_id": "dead", "owner": "x",
                                               "ttl_s": 0.3})  # fmt: skip
    wait_until(lambda: lock.lock_status(store) is None)
    with lock.held(store, "run-3"):
        pass


def test_a_stolen_lock_is_noticed_and_needs_a_reason(session: HostSession) -> None:
    with lock.held(session.releases, "run-1", beat_s=0.1) as lost:
        with pytest.raises(LockedError, match="reason"):
            lock.steal(session.releases, "run-2", " ")
        before = lock.steal(session.releases, "run-2", "operator one is on holiday")
        assert before is not None
        assert before.run_id == "run-1"
        assert lost.wait(20)
        holder = lock.lock_status(session.releases)
        assert holder is not None
        assert (holder.run_id, holder.stolen_reason) == ("run-2", "operator one is on holiday")


def test_secrets_reach_the_service_but_no_file_that_others_read(session: HostSession, tmp_path: Path) -> None:
    session.services.install(ServiceUnit("secret", ("sleep", "3600"), secret_env={"API_KEY": "canary-3c1f"}))
    session.services.start("secret")
    pid = session.services.status("secret").main_pid
    assert b"API_KEY=canary-3c1f" in Path(f"/proc/{pid}/environ").read_bytes()
    holders = subprocess.run(
        ["grep", "-rl", "canary-3c1f", str(tmp_path)], capture_output=True, text=True
    ).stdout.split()
    assert [Path(path).name for path in holders] == ["secret.json"]
    assert Path(holders[0]).stat().st_mode & 0o077 == 0


def test_another_budget_is_another_release_on_the_same_clone(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, release = built
    store = session.releases
    before = session.transport.get_bytes(store.layout.manifest(release.id))
    wider = release.launch.model_copy(update={"argv": with_flags(release.launch.argv, {"--algorithm": "WIDER"})})
    variant = build.with_launch(release, source, wider, "ddtree")
    assert (variant.id != release.id, variant.venv_release) == (True, release.id)
    assert build.with_launch(release, source, release.launch, "ddtree") is release
    assert build.with_launch(variant, source, wider, "ddtree") is variant
    store.write(variant)
    activation = session.activation()
    switched = activation.switch(variant, source, deadline_s=60)
    assert ask(session)["argv"][-1] == "WIDER"
    assert ask(session)["prefix"] == store.layout.venv(release.id)
    assert activation.confirm(switched.token)
    assert drift_of(activation, source, variant) == []
    assert session.transport.get_bytes(store.layout.manifest(release.id)) == before  # written once, never changed
    assert store.prune(keep=0) == []  # the clone that the current release starts from stays
    back = activation.switch(source, variant, deadline_s=60)
    assert activation.confirm(back.token)
    assert store.prune(keep=0) == [release.id, variant.id]
