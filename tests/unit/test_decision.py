"""From verdict, override and lost capabilities to a decision."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.plan import Plan
from orchestrator.graph.registry import GraphRequest, load_graph
from orchestrator.hosts.inventory import DDTree, HostConfig
from tasks.benchmark import decision
from tasks.knobs import Knobs, read_knobs
from tasks.smoke import lost_capabilities

HOST = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")
ADOPT = {"decision": "adopt", "budget": 32, "reason": "its interval lies above 1.020"}


def knobs(**settings: str) -> Knobs:
    return read_knobs(HOST, settings)


def test_a_measured_gain_is_adopted_with_its_budget():
    found = decision(knobs(), ADOPT)
    assert (found["decision"], found["nodes"], found["by"]) == ("adopt", 32, "measurement")


def test_a_gain_that_costs_a_capability_is_kept_linear_and_says_how_to_adopt():
    found = decision(knobs(), ADOPT, ["json-schema"])
    assert (found["decision"], found["nodes"]) == ("keep linear", None)
    assert "--set accept_loss=json-schema" in found["why"]


def test_an_accepted_loss_adopts():
    assert decision(knobs(accept_loss="json-schema"), ADOPT, ["json-schema"])["decision"] == "adopt"


def conditional(at_8: str) -> dict[str, object]:
    loads = [{"concurrency": 1, "decision": "adopt"}, {"concurrency": 8, "decision": at_8}]
    return ADOPT | {"conditional": True, "holds_for": (1,), "loads": loads}


@pytest.mark.parametrize(
    ("at_8", "word"), [("keep linear", "keep linear"), ("inconclusive", "inconclusive"), ("invalid", "inconclusive")]
)
def test_a_gain_at_some_loads_is_not_adopted_with_one_width_for_all(at_8, word):
    found = decision(knobs(), conditional(at_8))
    assert (found["decision"], found["nodes"], found["by"]) == (word, None, "measurement")
    assert "32 nodes were shown to pay only at 1 at once, not at 8" in found["why"]
    assert "`ddtree: {adaptive: true}` in hosts.yaml" in found["why"]
    assert "--set decide=adopt --set nodes=32 --reason TEXT" in found["why"]


def test_a_gain_at_some_loads_is_adopted_where_the_service_chooses_its_width_or_a_person_says_so():
    adaptive = read_knobs(HOST.model_copy(update={"ddtree": DDTree(adaptive=True)}), {})
    found = decision(adaptive, conditional("keep linear"))
    assert (found["decision"], found["nodes"]) == ("adopt", 32)
    said = decision(knobs(decide="adopt", reason="quiet host", nodes="32"), conditional("keep linear"))
    assert (said["decision"], said["by"], said["nodes"]) == ("adopt", "override", 32)


@pytest.mark.parametrize("word", ["keep linear", "inconclusive", "invalid"])
def test_other_verdicts_stand_as_measured(word):
    found = decision(knobs(), {"decision": word, "budget": 15, "reason": "r"})
    assert (found["decision"], found["nodes"]) == (word, None)


@pytest.mark.parametrize(("word", "code"), [("keep linear", 9), ("inconclusive", 9), ("invalid", 8), ("adopt", None)])
@pytest.mark.parametrize(("name", "skipped"), [("deploy-ddtree", ("cutover",)), ("bench", ())])
def test_a_decision_ends_the_run_with_the_code_of_the_contract(word, code, name, skipped):
    plan = Plan(load_graph(name, GraphRequest("local", HOST, {})))
    ctx = SimpleNamespace(output=lambda key: {"decision": word, "by": "measurement", "why": "r"})
    outcome = plan.specs["decide"].action.verify(ctx).outcome
    assert (outcome.exit_code if outcome else None) == code
    assert outcome is None or outcome.skip == skipped
    assert set(skipped) <= set(plan.specs)


def test_an_override_is_recorded_beside_what_was_measured():
    found = decision(knobs(decide="adopt", reason="trial", nodes="15"), ADOPT | {"decision": "inconclusive"}, ["seed"])
    assert (found["decision"], found["by"], found["nodes"]) == ("adopt", "override", 15)
    assert found["why"] == "trial (measured: inconclusive)"
    assert found["lost"] == ["seed"]


def test_nothing_measured_and_no_override_is_an_error():
    with pytest.raises(OrchestrateError, match="no measurement"):
        decision(knobs(), None)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"decide": "adopt"}, "--reason"),
        ({"decide": "maybe", "reason": "x"}, "adopt or keep-linear"),
        ({"budgets": "15,many"}, "budgets=many"),
        ({"pairs": "0"}, "pairs=0"),
        ({"margin": "2"}, "margin=2"),
        ({"node": "15"}, "no such setting"),
        ({"loads": "1,x"}, "loads=x"),
        ({"prompts": "no-such-file.jsonl"}, "can't be read as a prompt set"),
        ({"loads": "1,8"}, "--max-live-load 8 allows that"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, word):
    with pytest.raises(UsageError, match=word):
        knobs(**settings)


def test_only_what_passed_before_and_is_not_offered_now_is_lost():
    before = {"checks": [{"name": "a", "ok": True}, {"name": "b", "ok": None}, {"name": "c", "ok": True}]}
    after = {"checks": [{"name": "a", "ok": None}, {"name": "b", "ok": None}, {"name": "c", "ok": True}]}
    assert lost_capabilities(before, after) == ["a"]
    assert lost_capabilities(None, after) == []
