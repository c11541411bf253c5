"""Switches between releases on a real embedded host: confirmed, undone by the host itself, lost on the way, settled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts import clean
from orchestrator.hosts.session import HostSession
from orchestrator.release import activate
from orchestrator.release.activate import Activation, SwitchLost
from orchestrator.release.deadman import Deadman
from orchestrator.release.drift import drift_of
from orchestrator.release.manifest import Manifest
from orchestrator.release.settle import look, settle
from tasks.restore import restore
from tests.release.driving import ask, found, wait_until


@pytest.fixture
def live(session: HostSession, built: tuple[Manifest, Manifest]) -> Activation:
    """The built release is live and confirmed."""
    source, release = built
    activation = session.activation()
    assert activation.confirm(activation.switch(release, source, deadline_s=3600).token)
    return activation


def test_cut_over_and_back_leave_unit_and_environment_as_they_were(
    session: HostSession, built: tuple[Manifest, Manifest], serving_venv: Path
) -> None:
    source, release = built
    before = session.services.definition("sglang")
    digest = session.releases.tree_digest(str(serving_venv))
    activation = session.activation()
    switched = activation.switch(release, source, deadline_s=120)
    said = ask(session)
    assert (said["plugin"], said["argv"][-1]) == ("1.0", "TREE")
    assert said["prefix"] == session.releases.layout.venv(release.id)
    assert session.releases.current() == release.id
    assert activation.confirm(switched.token)
    assert found(session) == source  # what was found stays known while the release is live
    back = activation.switch(source, release, deadline_s=120)
    assert activation.confirm(back.token)
    assert ask(session)["argv"][-1] == "LINEAR"
    assert session.services.definition("sglang") == before
    assert session.releases.current() == source.id
    assert session.releases.tree_digest(str(serving_venv)) == digest


def test_an_unconfirmed_switch_is_undone_by_the_host_itself(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, release = built
    activation = session.activation()
    switched = activation.switch(release, source, deadline_s=10)
    session.transport.close()  # the operator is gone
    wait_until(lambda: session.deadman.status().state == "fired")
    assert ask(session)["argv"][-1] == "LINEAR"
    assert session.releases.current() == source.id
    status = session.deadman.status()
    assert (status.token, all(step["ok"] for step in status.steps)) == (switched.token, True)
    assert not activation.confirm(switched.token)


def test_a_second_switch_cannot_be_armed_over_an_open_one(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, _ = built
    token = session.deadman.arm(session.activation().restore_plan(source), source.id, 60)
    with pytest.raises(OrchestrateError, match="still armed"):
        session.deadman.arm(session.activation().restore_plan(source), source.id, 60)
    assert session.deadman.disarm("another token").state == "armed"
    assert session.deadman.disarm(token).state == "disarmed"


def test_a_switch_that_the_host_undid_meanwhile_starts_nothing_unguarded(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, release = built

    def fire_first(point: str) -> None:
        if point == "stopped":  # as when the host restarts between two commands of the operator
            session.deadman.fire(session.deadman.status().token)

    with pytest.raises(SwitchLost, match="serves again"):
        session.activation().switch(release, source, deadline_s=60, at=fire_first)
    assert ask(session)["argv"][-1] == "LINEAR"
    assert session.releases.current() == source.id
    assert look(session.activation()).serving == source.id


def test_what_the_host_started_with_our_definition_is_started_anew(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, release = built

    def cross(point: str) -> None:
        if (
            point == "stopped"
        ):  # the host goes back, and starts the unit when our definition has already replaced its own
            session.deadman.fire(session.deadman.status().token)
            session.services.stop("sglang")
        if point == "defined":
            session.services.start("sglang")

    with pytest.raises(SwitchLost, match="serves again"):
        session.activation().switch(release, source, deadline_s=60, at=cross)
    assert ask(session)["argv"][-1] == "LINEAR"
    assert look(session.activation()).serving == source.id


def test_settle_ends_what_a_killed_operator_left(session: HostSession, built: tuple[Manifest, Manifest]) -> None:
    source, release = built
    activation = session.activation()
    activation.switch(release, source, deadline_s=3600)
    assert settle(activation).serving == source.id
    assert ask(session)["argv"][-1] == "LINEAR"
    # An unconfirmed release that was started after the host had gone back.
    session.services.stop("sglang")
    activation.apply_definition(release)
    session.services.start("sglang")
    now = settle(activation)
    assert (now.serving, now.current, now.settled) == (source.id, source.id, True)
    assert ask(session)["argv"][-1] == "LINEAR"


def test_a_switch_that_was_armed_and_not_made_restarts_nothing(
    session: HostSession, built: tuple[Manifest, Manifest]
) -> None:
    source, _ = built
    activation = session.activation()
    before = session.services.status("sglang").main_pid
    session.deadman.arm(activation.restore_plan(source), source.id, 3600)
    now = settle(activation)
    assert (now.serving, now.deadman, now.settled) == (source.id, "disarmed", True)
    assert session.services.status("sglang").main_pid == before


def test_an_operator_lost_on_the_way_back_leaves_that_to_the_host(
    session: HostSession, built: tuple[Manifest, Manifest], live: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = built
    monkeypatch.setattr(activate, "ALONE_AFTER_S", 1.0)

    def lose() -> None:
        assert not session.services.status("sglang").running
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        live.bring_back(source, before_start=lose)
    wait_until(lambda: session.deadman.status().state == "fired")
    assert (look(live).serving, session.releases.current()) == (source.id, source.id)
    assert ask(session)["argv"][-1] == "LINEAR"


def test_the_host_waits_for_a_slow_stop_and_for_what_comes_before_the_start(
    session: HostSession, built: tuple[Manifest, Manifest], live: Activation
) -> None:
    source, _ = built
    armed: list[float] = []

    def look_at_timer() -> None:
        document = session.transport.get_bytes(f"{session.deadman.folder}/armed.json")
        armed.append(json.loads(document)["seconds"])

    live.bring_back(source, before_start=look_at_timer, longer_s=300)
    assert armed == [session.config.service.stop_timeout_s + 300 + activate.ALONE_AFTER_S]


def test_a_way_back_that_cannot_be_guarded_is_gone_all_the_same(
    session: HostSession, built: tuple[Manifest, Manifest], live: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = built

    def full(*_: object) -> str:
        raise OrchestrateError("no space left")

    monkeypatch.setattr(Deadman, "arm", full)
    said: list[str] = []
    live.bring_back(source, log=said.append)
    assert "without the host's own guard: no space left" in said[0]
    assert (look(live).serving, look(live).running) == (source.id, True)


def test_drift_names_the_file_and_shows_the_change(session: HostSession, built: tuple[Manifest, Manifest]) -> None:
    source, release = built
    activation = session.activation()
    assert drift_of(activation, source, source) == []
    unit = Path(next(iter(source.texts)))
    unit.write_text(unit.read_text().replace('"LINEAR"', '"BY-HAND"'))
    (drift,) = drift_of(activation, source, source)
    assert "changed by hand" in drift.detail
    assert '+    "BY-HAND"' in drift.diff
    switched = activation.switch(release, source, deadline_s=60)
    assert [one.what for one in drift_of(activation, source, release)] == ["unit"]
    assert activation.confirm(switched.token)


@pytest.mark.parametrize("cut_off_at", ["stopped", "started"])
def test_cleaning_in_the_middle_of_a_switch_leaves_the_service_as_it_was_found(
    session: HostSession, built: tuple[Manifest, Manifest], cut_off_at: str
) -> None:
    source, release = built

    def lost(point: str) -> None:
        if point == cut_off_at:
            raise KeyboardInterrupt  # the operator's process ends here

    with pytest.raises(KeyboardInterrupt):
        session.activation().switch(release, source, deadline_s=3600, at=lost)
    removed = clean._clean(session)
    assert "the armed dead man's switch" in removed
    assert ask(session)["argv"][-1] == "LINEAR"
    assert found(session).launch == source.launch
    assert session.deadman.status().state == "never armed"  # its folder is gone too


def test_a_release_that_differs_in_its_environment_alone_is_not_taken_for_the_live_one(
    session: HostSession, built: tuple[Manifest, Manifest], live: Activation
) -> None:
    _, release = built
    launch = release.launch.model_copy(update={"env": {**release.launch.env, "WIDTHS": "auto"}})
    other = release.model_copy(update={"id": "ddtree-0123456789ab", "venv_of": release.id, "launch": launch})
    session.releases.write(other)
    assert live.confirm(live.switch(other, release, deadline_s=3600).token)
    before = session.services.status(session.unit).main_pid
    restore(session, release, log=lambda _line: None)
    definition = session.services.definition(session.unit)
    assert definition is not None
    assert (definition.release, session.releases.current()) == (release.id, release.id)
    assert session.services.status(session.unit).main_pid != before
    again = session.services.status(session.unit).main_pid
    restore(session, release, log=lambda _line: None)
    assert session.services.status(session.unit).main_pid == again
