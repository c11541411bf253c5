"""A host whose engine asks for an API key: recorded, taken over, looked at, measured and taken back with it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import operations
from orchestrator.bench.arm import OpenArm, RowSettings
from orchestrator.bench.prompts import load_prompt_sets, shipped_sets
from orchestrator.errors import ExitCode
from orchestrator.graph.model import GraphSpec, TaskContext, TaskSpec
from orchestrator.graph.runner import RunResult
from orchestrator.hosts.inventory import HostConfig, Inventory
from orchestrator.hosts.readiness import wait_ready
from orchestrator.hosts.secrets import MASK
from orchestrator.hosts.serving import serving_now
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.build import with_launch
from orchestrator.release.launch import with_flags
from orchestrator.release.manifest import Manifest
from orchestrator.remote.services import ServiceUnit
from orchestrator.store.store import open_store
from orchestrator.transport.embedded import embedded_home, remove_embedded
from tasks.baseline import RecordLinear
from tasks.benchmark import _linear_arm
from tasks.launch import ALGORITHM, WIDTH
from tasks.linear import linear_release
from tasks.rollback import BackAsFound, RollBack
from tasks.samples import Sample, sample_from_json
from tasks.smoke import SmokeTest
from tasks.takeover import KEY, TakeOver

ENGINE = Path(__file__).with_name("keyed_engine.py")
REPOSITORY = ENGINE.parents[2]
CANARY = "canary-5c1f-of-this-test"
IN_THE_OPEN = "canary-81ab-in-the-command"  # what somebody wrote into the command line of the service
SETTINGS = {"confirm_s": "60", "max_tokens": "16"}


class ToTree(TakeOver):
    """The program's cut-over, to the same engine started as a tree."""

    algorithm = "DDTREE"

    def previous(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return linear_release(ctx, replica)

    def target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        linear = linear_release(ctx, replica)
        argv = with_flags(linear.launch.argv, {ALGORITHM: "DDTREE", WIDTH: "16"})
        return with_launch(linear, linear, linear.launch.model_copy(update={"argv": argv}), "dflash")

    def expected(self, ctx: TaskContext) -> list[Sample]:
        return [sample_from_json(one) for one in ctx.output("record-linear")["samples"][:8]]


class Measure(SmokeTest):
    """A row of the benchmark on the linear arm; a smoke test of the service goes with it."""

    def apply(self, ctx: TaskContext) -> Any:
        prompts = load_prompt_sets(shipped_sets())[:2]
        with OpenArm(lambda: _linear_arm(ctx, ())) as arm:
            settings = RowSettings(max_tokens=16)
            row = arm.measure(
                settings, prompts, arm="linear", budget=0, concurrency=1, pair=0, block=0, warm_up=prompts
            )
        assert [request.tokens for request in row.requests] == [16, 16]
        return super().apply(ctx)


@pytest.fixture
def place(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[operations.Workplace]:
    """An embedded host whose linear service asks for the key to which hosts.yaml refers."""
    monkeypatch.setenv("KEY_OF_THIS_TEST", CANARY)
    config = HostConfig.model_validate({
        "name": "local", "transport": "embedded", "model": {"target": "/t", "draft": "/d"},
        "secrets": {"api_key": "env:KEY_OF_THIS_TEST"},
        "service": {"port": free_port, "stop_timeout_s": 5, "start_timeout_s": 60},
    })  # fmt: skip
    try:
        with open_session(config, tmp_path) as session, open_store(f"sqlite:///{tmp_path / 'state.db'}") as store:
            package = embedded_home(tmp_path, "local") / "lib" / "sglang"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text('__version__ = "0.5.20"\n')
            argv = (sys.executable, str(ENGINE), "--port", str(free_port), ALGORITHM, "DFLASH", WIDTH, "16")
            argv = (*argv, "--hf-token", IN_THE_OPEN)
            env = {"PYTHONPATH": f"{package.parent}:{REPOSITORY}"}
            session.services.install(ServiceUnit("sglang", argv, env, session.secret_env(), stop_timeout_s=5))
            session.services.start("sglang")
            wait_ready(session, "sglang", free_port, 60, lambda *_: None)
            yield operations.Workplace(tmp_path, Inventory(hosts={"local": config}), store)
    finally:
        remove_embedded(tmp_path, "local")


def holding(folder: Path, value: str) -> list[Path]:
    """Files that hold a value; nobody but their owner may read them."""
    found = [path for path in folder.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in found), found
    return found


RECORD = TaskSpec("record-linear", "Record", "baseline", RecordLinear())


def run(place: operations.Workplace, *tasks: TaskSpec) -> RunResult:
    graph = GraphSpec("keys", tasks, rollback_check=BackAsFound())
    return operations.run_graph(place, graph, place.inventory.hosts["local"], SETTINGS)


def test_every_task_sends_the_key_of_the_host_and_none_keeps_it(place: operations.Workplace, tmp_path: Path) -> None:
    done = run(
        place,
        RECORD,
        TaskSpec("smoke", "Measure", "measure", Measure("the service"), depends_on=("record-linear",)),
        TaskSpec(KEY, "Cut over", "cutover", ToTree(), depends_on=("smoke",), changes_host=True),
    )
    assert done.exit_code == ExitCode.DONE, done.reason
    with contextlib.closing(place.session("local")) as session:
        now = serving_now(session)
    assert (now["algorithm"], now["nodes"], now["drift"]) == ("DDTREE", 15, [])
    assert now["tok_s"]
    back = run(place, TaskSpec("rollback", "Back", "rollback", RollBack(None), changes_host=True))
    assert back.exit_code == ExitCode.DONE, back.reason
    assert {path.name for path in holding(tmp_path, CANARY)} == {"secret.json"}  # the host's own
    in_the_open = holding(tmp_path, IN_THE_OPEN)
    assert all(embedded_home(tmp_path, "local") in path.parents for path in in_the_open)  # none on this side
    assert {path.name for path in in_the_open} == {"unit.json", "manifest.json"}


@pytest.mark.parametrize(("key", "said"), [("another-key", "refuses the key that was sent"), (None, "asks for a key")])
def test_a_key_that_is_wrong_is_one_sentence_that_names_the_setting(
    place: operations.Workplace, monkeypatch: pytest.MonkeyPatch, key: str | None, said: str
) -> None:
    config = place.inventory.hosts["local"]
    if key is None:
        config = config.model_copy(update={"secrets": {}})
        place.inventory.hosts["local"] = config
    else:
        monkeypatch.setenv("KEY_OF_THIS_TEST", key)
    found = run(place, RECORD)
    assert found.exit_code == ExitCode.USAGE
    assert said in found.reason
    assert "hosts.local.secrets.api_key" in found.reason
    assert len(found.reason) < 300
    assert MASK not in found.reason
