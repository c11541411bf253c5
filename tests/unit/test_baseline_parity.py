"""The deploy graph's check against offline baselines: recorded traces of right and broken engines, and the choice of a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import operations
from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.preview import preview
from orchestrator.graph.runner import Runner
from orchestrator.hosts.inventory import HostConfig
from orchestrator.store.store import open_store
from tasks import baseline_files
from tasks.baseline import RecordLinear
from tasks.baseline_parity import RID, Judge, sentence
from tasks.preflight import AcceleratorFree
from tasks.samples import Sample, sample_from_json

TRACES = Path(__file__).parent / "traces"
SHIPPED = {path.stem: path for path in baseline_files.files(Path("/nonexistent"))}
POLICY = baseline_files.engine_policy({})


def recorded(name: str) -> tuple[Judge, str, list[Sample]]:
    document = json.loads((TRACES / f"{name}.json").read_text())
    baseline = baseline_files.read(SHIPPED[document["pair"]])
    judge = Judge(baseline, document["nodes"], document["max_tokens"], 1e-3)
    samples = [sample_from_json({"seconds": 0.0, **one}) for one in document["samples"]]
    return judge, "\n".join(map(json.dumps, document["trace"])), samples


def chain_steps(name: str, prompt_id: str, new_tokens: int) -> int:
    """Steps of the chain from the baseline's anchors."""
    prompt = next(p for p in json.loads(SHIPPED[name].read_text())["prompts"] if p["id"] == prompt_id)
    anchor = steps = 0
    while anchor + 1 < new_tokens:
        anchor += prompt["anchors"]["chain"][anchor]
        steps += 1
    return steps


@pytest.mark.parametrize("name", ["right_dense", "right_hybrid"])
def test_a_right_engine_passes_with_every_step_compared(name: str) -> None:
    judge, trace, samples = recorded(name)
    report = judge.tree(trace, samples)
    assert report["ok"]
    assert report["differences"] == []
    assert report["prompts"] == len(samples) == 4
    assert report["steps"] == sum(sample.steps for sample in samples)
    assert report["engine_tokens_per_step"] == report["baseline_tokens_per_step"] > 1.5


@pytest.mark.parametrize(
    "name", ["wrong_rope_depth", "stale_hybrid_state", "compaction_off_by_one", "slot_zero_masked"]
)
def test_a_broken_engine_is_refused_by_prompt_step_and_node(name: str) -> None:
    judge, trace, samples = recorded(name)
    with pytest.raises(OrchestrateError) as caught:
        judge.tree(trace, samples)
    said = str(caught.value)
    assert f"leaves the offline baseline {judge.baseline.path.name}: prompt code-" in said
    assert ", step " in said
    assert "node at depth" in said
    assert caught.value.exit_code == 1


def test_other_requests_in_the_trace_are_none_of_its_business() -> None:
    judge, trace, samples = recorded("right_dense")
    other = json.dumps({"rid": "HEALTH_CHECK_1", "step": 0, "accepted": 1})
    assert judge.tree(f"{other}\n{trace}\n{other}", samples)["ok"]


def test_a_trace_without_one_of_the_requests_is_refused() -> None:
    judge, trace, samples = recorded("right_dense")
    lines = [line for line in trace.splitlines() if f'{RID}{samples[0].prompt_id}"' not in line]
    with pytest.raises(OrchestrateError, match="holds 3 of the 4 baseline prompts"):
        judge.tree("\n".join(lines), samples)
    with pytest.raises(UsageError, match="holds no steps"):
        judge.tree("", samples)


def test_one_lost_token_is_named_to_the_node() -> None:
    judge, trace, samples = recorded("right_dense")
    lines = [json.loads(line) for line in trace.splitlines()]
    first = next(line for line in lines if line["accepted"] > 2)
    first["accepted"] -= 1
    name = first["rid"].removeprefix(RID)
    with pytest.raises(OrchestrateError, match=f"prompt {name}, step {first['step']} .*lost node at depth"):
        judge.tree("\n".join(map(json.dumps, lines)), samples)


def test_the_linear_service_is_held_by_verify_counts() -> None:
    judge, _, samples = recorded("right_dense")
    right = [Sample(s.prompt_id, s.ids, chain_steps("tiny-dense", s.prompt_id, judge.max_tokens), 0.0) for s in samples]
    assert judge.linear(right)["ok"]
    wrong = [*right[1:], Sample(right[0].prompt_id, right[0].ids, right[0].steps + 2, 0.0)]
    with pytest.raises(OrchestrateError, match=f"The linear service leaves .* verify count {right[0].steps + 2}"):
        judge.linear(wrong)


def known(name: str) -> baseline_files.KnownBaseline:
    return baseline_files.read(SHIPPED[name])


def test_the_served_pair_chooses_its_baseline_by_hash() -> None:
    both = [known("tiny-dense"), known("tiny-hybrid")]
    hybrid = both[1]
    assert baseline_files.choose(both, str(hybrid.target), str(hybrid.draft), 15, POLICY) == hybrid
    other = baseline_files.choose(both, str(hybrid.target), str(both[0].draft), 15, POLICY)
    assert other == "none of the 2 offline baselines was made with this target and draft"


@pytest.mark.parametrize(("nodes", "engine", "words"), [
    (17, {}, "no budget of 17 nodes"),
    (64, {"topk": 8}, "made with k 32, the engine has 8"),
    (64, {"spine": 4}, "made with spine_depth 0, the engine has 4"),
    (64, {"off_spine": 0.5}, "made with off_spine_penalty 0, the engine has 0.5"),
])  # fmt: skip
def test_a_baseline_of_another_tree_is_no_judge_and_says_why(nodes: int, engine: dict[str, Any], words: str) -> None:
    dense = known("tiny-dense")
    why = baseline_files.choose(
        [dense], str(dense.target), str(dense.draft), nodes, baseline_files.engine_policy(engine)
    )
    assert isinstance(why, str)
    assert words in why
    assert sentence({"missing": why}).startswith("no offline baseline was used: ")


def test_a_width_cap_above_the_tree_changes_nothing() -> None:
    dense = known("tiny-dense")
    assert dense.why_not(15, baseline_files.engine_policy({"topk": 64})) is None


@pytest.mark.parametrize(("content", "words"), [
    ('{"format": "ddtree-baseline", "version": 1, "prompts": [{"id"', "cut off or damaged"),
    ('{"something": "else"}', "no baseline of this tool"),
    ("[1]", "no baseline of this tool"),
    ('{"format": "ddtree-baseline", "prompts": 3}', "is damaged"),
])  # fmt: skip
def test_a_bad_file_among_the_users_baselines_ends_plan_and_run_before_anything_else(
    content: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / baseline_files.FOLDER).mkdir()
    bad = tmp_path / baseline_files.FOLDER / "mine.json"
    bad.write_text(content)
    assert baseline_files.files(tmp_path)[0] == bad
    ctx: Any = SimpleNamespace(host=SimpleNamespace(state_dir=tmp_path))
    for first in (AcceleratorFree(), RecordLinear()):  # of a deployment, and of a sweep
        with pytest.raises(UsageError, match=words) as caught:
            first.probe(ctx)
        assert str(bad) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2
    bad.unlink()
    assert not AcceleratorFree().probe(ctx).satisfied


def test_a_damaged_baseline_ends_plan_and_run_with_exit_2_before_the_host_is_asked_anything(tmp_path: Path) -> None:
    (tmp_path / baseline_files.FOLDER).mkdir()
    (tmp_path / baseline_files.FOLDER / "mine.json").write_bytes(SHIPPED["tiny-dense"].read_bytes()[:5000])
    config = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-dense")
    spec = operations.build_graph("deploy-ddtree", config, {})
    untouched: Any = SimpleNamespace(name="local", state_dir=tmp_path, close=lambda: None)  # nothing else can be asked
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        with pytest.raises(UsageError, match="cut off or damaged"):
            preview(store, spec, lambda _: untouched, host="local")
        result = Runner(store, spec, lambda _: untouched, host="local").run()
        assert (result.exit_code, str(result.state)) == (2, "failed")
        assert "mine.json is cut off or damaged" in result.reason
        states = {task.key: str(task.state) for task in store.tasks.list(result.run_id)}
    assert states.pop("accelerator-free") == "failed"
    assert not {"completed", "failed", "in_progress"} & set(states.values()), states


@pytest.mark.parametrize(("change", "words"), [
    ({"version": 7}, "has version 7, this tool reads 1"),
    ({"anchors": {"entered": []}}, "is damaged"),
    ({}, ""),
])  # fmt: skip
def test_what_only_the_parity_check_reads_is_checked_as_early(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    document = json.loads(SHIPPED["tiny-dense"].read_text())
    if "anchors" in change:
        document["prompts"][-1] |= change
    else:
        document |= change
    (tmp_path / baseline_files.FOLDER).mkdir()
    mine = tmp_path / baseline_files.FOLDER / "mine.json"
    mine.write_text(json.dumps(document))
    if not words:
        baseline_files.require_whole(tmp_path)
        return
    with pytest.raises(UsageError, match=words) as caught:
        baseline_files.require_whole(tmp_path)
    assert str(mine) in str(caught.value)


def test_a_new_baseline_changes_the_fingerprint(tmp_path: Path) -> None:
    before = baseline_files.fingerprint(tmp_path)
    (tmp_path / baseline_files.FOLDER).mkdir()
    shutil.copy(SHIPPED["tiny-dense"], tmp_path / baseline_files.FOLDER / "mine.json")
    assert baseline_files.fingerprint(tmp_path) != before
