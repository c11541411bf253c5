"""Cut-over and rollback as graphs on one host without a router: the runner, the store and the tasks, a stand-in engine."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import operations
from orchestrator.errors import ExitCode
from orchestrator.graph.model import GraphSpec, TaskSpec
from orchestrator.graph.runner import RunResult
from orchestrator.hosts.inventory import HostConfig, Inventory
from orchestrator.hosts.readiness import wait_ready
from orchestrator.hosts.session import open_session
from orchestrator.release.deadman import Deadman
from orchestrator.release.launch import flag_value
from orchestrator.remote.services import RestorePlan, ServiceUnit
from orchestrator.store.store import open_store
from orchestrator.transport.embedded import embedded_home, remove_embedded
from tasks.launch import ALGORITHM
from tasks.replicas import GPU_FREE_S
from tasks.rollback import BackAsFound, RollBack
from tasks.samples import SAMPLE_PROMPTS, default_prompts, take_samples
from tasks.takeover import KEY
from tests.to_tree import ToTree

STANDIN = Path(__file__).resolve().parents[1] / "rolling" / "standin.py"


@pytest.fixture
def place(tmp_path: Path, free_port: int) -> Iterator[operations.Workplace]:
    """An embedded host whose linear service is the stand-in; `engine: sglang` so that nothing is provisioned."""
    config = HostConfig.model_validate({
        "name": "local", "transport": "embedded", "model": {"target": "/t", "draft": "/d"},
        "service": {"port": free_port, "stop_timeout_s": 5, "start_timeout_s": 60},
    })  # fmt: skip
    try:
        with open_session(config, tmp_path) as session, open_store(f"sqlite:///{tmp_path / 'state.db'}") as store:
            package = embedded_home(tmp_path, "local") / "lib" / "sglang"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text('__version__ = "0.5.20"\n')
            argv = (sys.executable, str(STANDIN), "--port", str(free_port), ALGORITHM, "DFLASH")
            session.services.install(ServiceUnit("sglang", argv, {"PYTHONPATH": str(package.parent)}, stop_timeout_s=5))
            session.services.start("sglang")
            wait_ready(session, "sglang", free_port, 60, lambda *_: None)
            yield operations.Workplace(tmp_path, Inventory(hosts={"local": config}), store)
    finally:
        remove_embedded(tmp_path, "local")


def run(place: operations.Workplace, task: TaskSpec) -> RunResult:
    graph = GraphSpec(task.key, (task,), rollback_check=BackAsFound())
    return operations.run_graph(place, graph, place.inventory.hosts["local"], {"confirm_s": "60"})


def cut_over(place: operations.Workplace, *more: str) -> RunResult:
    with contextlib.closing(place.session("local")) as session, session.http() as url:
        expected = take_samples(url, default_prompts(SAMPLE_PROMPTS), 16)
    return run(place, TaskSpec(KEY, "Cut over", "cutover", ToTree(expected, *more), changes_host=True))


def serving(place: operations.Workplace) -> tuple[str | None, str | None]:
    """The algorithm of the unit's command, and the current release."""
    with contextlib.closing(place.session("local")) as session:
        definition = session.services.definition("sglang")
        assert definition is not None
        return flag_value(definition.argv, ALGORITHM), session.releases.current()


def test_a_cut_over_is_proven_recorded_found_again_and_taken_back(place: operations.Workplace) -> None:
    first = cut_over(place)
    assert first.exit_code == ExitCode.DONE, first.reason
    (task,) = first.tasks
    output = task.output or {}
    assert serving(place) == ("DDTREE", output["release"])
    released = {fact.key: fact.data for fact in place.store.facts.list("release")}
    assert released[output["release"]] | {"since": 0} == {
        "id": output["release"], "algorithm": "DDTREE", "nodes": 15, "state": "live", "current": True,
        "known_good": True, "unit": "sglang", "since": 0,
    }  # fmt: skip
    assert released[output["previous"]]["current"] is False
    armed = [fact.data for fact in place.store.facts.list("deadman")]
    assert [one["armed"] for one in armed] == [True, False]
    assert armed[0]["fires_at"] > 0
    assert place.store.facts.list("drift")[-1].data == {"items": []}
    again = cut_over(place)
    assert "live" in again.tasks[0].reason  # nothing was done again
    with contextlib.closing(place.session("local")) as session:
        session.releases.mark_known_good(output["previous"], {"by": "this test"})
    back = run(place, TaskSpec("rollback", "Back", "rollback", RollBack(None), changes_host=True))
    assert back.exit_code == ExitCode.DONE, back.reason
    assert serving(place) == ("DFLASH", output["previous"])


def test_a_release_that_answers_wrongly_is_taken_back_and_that_is_proven(place: operations.Workplace) -> None:
    found = cut_over(place, "--wrong")
    assert (found.exit_code, found.state.value) == (ExitCode.ROLLED_BACK, "rolled_back")
    assert "does not give the recorded tokens" in found.reason
    assert serving(place)[0] == "DFLASH"


HELD_LOOKS = 3  # how often nvidia-smi still names the stopped process


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` first in the host's PATH, which names the process in the file `pid` for a few looks."""
    folder = tmp_path / "smi"
    folder.mkdir()
    (folder / "looks").write_text("0")
    (folder / "nvidia-smi").write_text(
        f"#!/bin/sh\ncd {folder}\n"
        'case "$1" in\n--query-gpu*) echo "0, GPU-a, NVIDIA H200, 143771, 1024, 12, 9.0, 570.1";;\n'
        "*) looks=$(cat looks); echo $((looks + 1)) > looks\n"
        f'   [ ! -e pid ] || [ "$looks" -ge {HELD_LOOKS} ] || echo "GPU-a, $(cat pid), 2048";;\nesac\n'
    )
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_nothing_starts_before_the_stopped_service_has_freed_its_gpu_memory(
    smi: Path, place: operations.Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(place.session("local")) as session:
        (smi / "pid").write_text(str(session.services.status("sglang").main_pid))
    (smi / "looks").write_text("0")
    found = cut_over(place)
    assert found.exit_code == ExitCode.DONE, found.reason
    with contextlib.closing(place.session("local")) as session:
        (smi / "pid").write_text(str(session.services.status("sglang").main_pid))
    (smi / "looks").write_text("0")
    armed: list[float] = []
    arm = Deadman.arm

    def armed_for(self: Deadman, plan: RestorePlan, current: str | None, seconds: float) -> str:
        armed.append(seconds)
        return arm(self, plan, current, seconds)

    monkeypatch.setattr(Deadman, "arm", armed_for)
    with contextlib.closing(place.session("local")) as session:
        session.releases.mark_known_good((found.tasks[0].output or {})["previous"], {"by": "this test"})
    back = run(place, TaskSpec("rollback", "Back", "rollback", RollBack(None), changes_host=True))
    assert back.exit_code == ExitCode.DONE, back.reason
    assert armed[0] > GPU_FREE_S  # the host must not start it before we stop waiting
    lines = [event.data["line"] for event in place.store.events.tail(run_id=found.run_id, kinds=("log",))]
    waited = next(index for index, line in enumerate(lines) if "have freed their GPU memory" in line)
    assert "stopped" in lines[waited - 1]
    assert "started with" in lines[waited + 1]
    assert int((smi / "looks").read_text()) > HELD_LOOKS
