"""Graphs are refused with sentences that name the task, and valid ones are ordered and drawn."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ExitCode, UsageError
from orchestrator.graph import registry
from orchestrator.graph.model import Action, GraphSpec, Retry
from orchestrator.graph.plan import GraphError, Plan
from orchestrator.graph.registry import GraphRequest, load_graph
from orchestrator.graph.render import render
from tests.graph.conftest import Do, graph, task
from tests.graph.stand_in import deploy_graph


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([task("a", Action(), "a")], "task a depends on itself"),
        ([task("a", Action(), "b")], "task a depends on b, which is not in the graph"),
        ([task("a", Action()), task("a", Action())], "task a is defined twice"),
        ([task("a", Action(), "c"), task("b", Action(), "a"), task("c", Action(), "b")], "in a circle: "),
        (
            [task("a", Action(), "gone"), task("b", Action(), "a")],
            "task b can never be reached, because it depends on a",
        ),
        ([task("a b/c", Action())], "'a b/c' must be letters"),
        ([task("a", Action(), timeout_s=0)], "task a has a time-out of 0 s"),
        ([task("a", Action(), retry=Retry(0))], "task a allows 0 attempts"),
        ([], "it has no tasks"),
    ],
)
def test_what_is_wrong_is_named(tasks: list[Any], sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence) as error:
        Plan(graph(*tasks))
    assert error.value.exit_code == ExitCode.USAGE


def test_a_circle_is_said_once_and_what_waits_behind_it_too() -> None:
    with pytest.raises(GraphError) as error:
        Plan(GraphSpec("g", (task("a", Action(), "b"), task("b", Action(), "a"), task("c", Action(), "b"))))
    circle, behind = error.value.problems
    assert circle.startswith("tasks depend on each other in a circle: ")
    assert behind == "task c can never be reached, because it depends on b"


def test_of_ten_thousand_problems_some_are_named_and_the_rest_counted() -> None:
    count = 10_000
    ring = [task(f"t{index}", Action(), f"t{(index + 1) % count}") for index in range(count)]
    with pytest.raises(GraphError) as error:
        Plan(graph(*ring))
    assert "t0 -> t1 -> " in str(error.value)
    assert f"({count - 8} more) -> t0" in str(error.value)
    assert len(str(error.value)) < 300
    with pytest.raises(GraphError) as error:
        Plan(graph(*(task(f"t{index}", Action(), "gone") for index in range(count))))
    assert str(error.value).endswith(f"; and {count - 8} more problems")
    assert len(str(error.value)) < 1000


def test_a_long_chain_that_is_written_backwards_is_a_valid_graph() -> None:
    count = 10_000
    chain = [task(f"t{index}", Action(), *[f"t{index + 1}"] * (index + 1 < count)) for index in range(count)]
    assert Plan(graph(*chain)).order[0] == f"t{count - 1}"


def test_two_tasks_may_not_share_a_change() -> None:
    action = Do()
    with pytest.raises(GraphError, match="tasks a and b share one action that changes the host"):
        Plan(graph(task("a", action, changes_host=True), task("b", action, changes_host=True)))


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_every_graph_is_either_ordered_or_refused_for_its_circle(edges: list[tuple[int, int]]) -> None:
    depends: dict[int, set[str]] = {number: set() for number in range(12)}
    for before, after in edges:
        depends[after].add(f"t{before}")
    spec = graph(*(task(f"t{number}", Action(), *sorted(depends[number])) for number in depends))
    try:
        plan = Plan(spec)
    except GraphError as error:
        assert "circle" in str(error) or "itself" in str(error)
        return
    place = {key: index for index, key in enumerate(plan.order)}
    assert sorted(place) == sorted(plan.specs)
    assert all(place[needed] < place[spec.key] for spec in plan.specs.values() for needed in spec.depends_on)


def test_ready_and_neighbours() -> None:
    plan = Plan(deploy_graph())
    assert plan.ready([]) == ["training"]
    assert plan.ready(["training"], taken=["vllm"]) == ["inspect"]
    assert plan.needed_for(["baseline"]) == {"baseline", "inspect", "training"}
    assert plan.following(["decide"]) == {"cut-over", "smoke", "roadmap"}


def test_the_definition_changes_with_the_shape_only() -> None:
    assert Plan(deploy_graph()).definition == Plan(deploy_graph()).definition
    one, other = graph(task("a", Do())), graph(task("a", Do(), changes_host=True))
    assert Plan(one).definition != Plan(other).definition


def test_every_form_of_a_graph() -> None:
    spec = graph(task("a", Do()), task("b", Do(), "a"))
    words = {"a": "reuse", "b": "failed"}
    assert '"a" -> "b";' in render(spec, "dot", words)
    assert '"a" [label="a (reuse)\\nDo a", fillcolor="#b7e1cd"];' in render(spec, "dot", words)
    assert "t0 --> t1" in render(spec, "mermaid", words)
    assert "fill:#f4c7c3" in render(spec, "mermaid", words)
    with pytest.raises(UsageError, match="choose dot, mermaid"):
        render(spec, "png")


def test_quotes_in_a_content_cannot_break_out() -> None:
    spec = GraphSpec("g", (task("a", Do()).__class__("a", 'say "hi"]; <b>\n', "p", Do()),))
    assert r"say \"hi\"" in render(spec, "dot")
    assert "&quot;hi&quot;]; &lt;b>" in render(spec, "mermaid")


def build(request: GraphRequest) -> GraphSpec:
    return graph(task(request.settings["key"], Do()))


def build_wrong(request: GraphRequest) -> str:
    return "a graph"


def build_broken(request: GraphRequest) -> GraphSpec:
    raise KeyError("x")


def test_graphs_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name, value, registry.GROUP)
        for name, value in (
            ("mine", "tests.graph.test_plan:build"),
            ("wrong", "tests.graph.test_plan:build_wrong"),
            ("gone", "tests.graph.nowhere:build"),
            ("broken", "tests.graph.test_plan:build_broken"),
            ("twice", "tests.graph.test_plan:build"),
            ("twice", "tests.graph.test_plan:build_wrong"),
        )
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    request = GraphRequest("local", None, {"key": "a"})
    assert load_graph("mine", request).tasks[0].key == "a"
    for name, sentence in (
        ("mina", "there is no graph mina: did you mean mine?"),
        ("wrong", "gave str, it must give a GraphSpec"),
        ("gone", "cannot be imported"),
        ("broken", "graph broken: its builder failed with KeyError: 'x'"),
        ("twice", "offered by several packages"),
    ):
        with pytest.raises(UsageError, match=sentence):
            load_graph(name, request)
    with pytest.raises(GraphError):
        load_graph("mine", GraphRequest("local", None, {"key": "a b/"}))
