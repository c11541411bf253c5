"""To-dos as agents and people use them: round trips, claims, dependencies, and bad documents."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import LockedError, UsageError
from orchestrator.graph.model import State
from orchestrator.graph.todolist import TodoList
from orchestrator.store.store import Store, open_store
from tests.graph.conftest import Do, graph, runner, task
from tests.graph.fake_host import Break


@pytest.fixture
def todos(store: Store) -> TodoList:
    return TodoList(store)


def document(*items: Any) -> str:
    return json.dumps({"todos": list(items)})


def test_export_and_import_give_the_same_list(todos: TodoList, tmp_path: Path) -> None:
    todos.load(document({"content": "Read the paper", "priority": "low", "status": "pending"}), "ada")
    first = todos.add("Write the kernel", "high", "ada")
    todos.add("Test it", "medium", "ada", (first.id,))
    text = todos.export()
    assert todos.load(text, "ada") == 3
    assert todos.export() == text
    with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        TodoList(other).load(text, "bob")
        assert json.loads(TodoList(other).export()) == json.loads(text)


def test_updating_one_item_leaves_the_others(todos: TodoList) -> None:
    todos.load(document(*({"id": f"t{n}", "content": f"Do {n}", "status": "completed"} for n in range(3))), "ada")
    todos.load(document({"id": "t1", "content": "Do 1", "status": "pending"}), "ada")
    assert [item.status for item in todos.items()] == ["completed", "pending", "completed"]


def test_a_bound_task_is_never_done_by_hand(store: Store, todos: TodoList) -> None:
    result = runner(store, graph(task("a", Do()), task("b", Break(), "a"), task("c", Do(), "b"))).run()
    bound = {item.id.partition(":")[2]: item for item in todos.items()}
    assert {key: (item.status, item.state) for key, item in bound.items()} == {
        "a": ("completed", State.COMPLETED), "b": ("pending", State.FAILED), "c": ("pending", State.PENDING),
    }  # fmt: skip
    assert "smoke test failed" in bound["b"].reason
    for change in (lambda: todos.set_status(bound["c"].id, "completed", "ada"),
                   lambda: todos.load(document({"id": bound["c"].id, "content": "x", "status": "completed"}), "ada")):  # fmt: skip
        with pytest.raises(UsageError, match="only its own evidence completes it"):
            change()
    with pytest.raises(UsageError, match="run --resume"):
        todos.claim(bound["c"].id, "ada")
    with pytest.raises(UsageError, match="cannot be removed"):
        todos.remove(bound["c"].id, "ada")
    assert todos.set_status(bound["c"].id, "cancelled", "ada").state is State.SKIPPED
    assert todos.set_status(bound["c"].id, "pending", "ada").state is State.PENDING
    assert todos.load(todos.export(), "ada") == 0
    assert store.tasks.get(result.run_id, "a").state is State.COMPLETED


def test_ready_follows_dependencies_and_urgency(todos: TodoList) -> None:
    todos.load(
        document(
            {"id": "late", "content": "Later", "priority": "high", "depends_on": ["soon"]},
            {"id": "low", "content": "Some day", "priority": "low"},
            {"id": "soon", "content": "Soon", "priority": "medium"},
        ),
        "ada",
    )
    assert [item.id for item in todos.ready()] == ["soon", "low"]
    with pytest.raises(UsageError, match="late waits for soon"):
        todos.claim("late", "ada")
    taken = todos.next("ada")
    assert taken is not None
    assert (taken.id, taken.owner, taken.status) == ("soon", "ada", "in_progress")
    todos.set_status("soon", "completed", "ada")
    assert [item.id for item in todos.ready()] == ["late", "low"]


def test_a_claim_is_exclusive_until_it_lapses(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: now[0]) as store:
        todos = TodoList(store)
        item = todos.add("Look into it", "high", "ada")
        todos.claim(item.id, "ada", ttl_s=60)
        todos.claim(item.id, "ada", ttl_s=60)
        with pytest.raises(LockedError, match="claimed by ada until"):
            todos.claim(item.id, "bob")
        assert todos.next("bob") is None
        now[0] += 61
        found = todos.next("bob")
        assert found is not None
        assert found.owner == "bob"
        todos.load(json.dumps([{"id": item.id, "content": "Look into it", "status": "pending"}]), "eve")
        assert todos.items()[0].owner is None


def test_what_is_removed_or_of_an_earlier_run_holds_up_nothing(store: Store, todos: TodoList) -> None:
    """Neither the to-dos that waited for it, nor those that are added or imported afterwards."""
    first = todos.add("First", "high", "ada")
    second = todos.add("Second", "high", "ada", (first.id,))
    todos.remove(first.id, "ada")
    assert [item.depends_on for item in todos.items()] == [()]
    assert [item.id for item in todos.ready()] == [second.id]

    earlier = runner(store, graph(task("a", Do()), task("b", Break(), "a"))).run()
    after_a = todos.add("After a", "low", "ada", (f"{earlier.run_id}:a",))
    after_b = todos.add("After b", "low", "ada", (f"{earlier.run_id}:b",))
    runner(store, graph(task("a", Do()))).run()
    assert [item.id for item in todos.ready()] == [second.id, after_a.id], "b is still to be done"
    with pytest.raises(UsageError, match=f"{after_b.id} waits for {earlier.run_id}:b"):
        todos.claim(after_b.id, "ada")
    third = todos.add("Third", "low", "ada", (f"{earlier.run_id}:b",))
    assert todos.load(todos.export(), "ada") == 4

    with store.transaction() as tx:
        tx.execute("DELETE FROM tasks WHERE run_id = ?", (earlier.run_id,))  # as `history prune` does
    assert {item.id for item in todos.ready()} == {second.id, after_a.id, after_b.id, third.id}
    assert todos.load(todos.export(), "ada") == 4
    with pytest.raises(UsageError, match=f"depends on {earlier.run_id}:b, which does not exist"):
        todos.add("Fourth", "low", "ada", (f"{earlier.run_id}:b",))


def test_the_same_text_added_at_once_stays_as_many_to_dos(tmp_path: Path) -> None:
    def add(number: int) -> list[str]:
        with open_store(f"sqlite:///{tmp_path}/state.db") as own:
            return [TodoList(own).add("Look at the log", "low", f"agent {number}").id for _ in range(10)]

    open_store(f"sqlite:///{tmp_path}/state.db").close()
    with ThreadPoolExecutor(4) as pool:
        ids = [made for agent in pool.map(add, range(4)) for made in agent]
    assert len(set(ids)) == 40


def test_many_processes_never_claim_the_same_item(store: Store, todos: TodoList, tmp_path: Path) -> None:
    todos.load(document(*({"content": f"Do {n}"} for n in range(24))), "ada")
    code = (
        "import sys; from orchestrator.store.store import open_store; from orchestrator.graph.todolist import TodoList\n"
        "todos = TodoList(open_store(sys.argv[1]))\n"
        "while item := todos.next(sys.argv[2]): print(item.id)"
    )
    url = f"sqlite:///{tmp_path}/state.db"
    children = [
        subprocess.Popen([sys.executable, "-c", code, url, str(n)], stdout=subprocess.PIPE, text=True) for n in range(4)
    ]
    claimed = [line for child in children for line in child.communicate(timeout=300)[0].split()]
    assert len(claimed) == len(set(claimed)) == 24


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"todos": [{"content": "x"', "not whole JSON"),
        ('"todos"', "must be"),
        ("[" * 100_000, "JSON|nested"),
        (document({"content": "x", "status": "done"}), "to-do 1 has status 'done': choose pending, in_progress"),
        (document({"content": "x", "priority": 1}), "to-do 1 has priority 1: choose high, medium, low"),
        (document({"content": "x"}, {"content": "y", "id": ""}), r"to-do 2 needs a id \(text\)"),
        (document({"id": "a", "content": "x"}, {"id": "a", "content": "y"}), "to-do 2: id a appears twice"),
        (document({"content": "x" * 1_000_000}), "content of 1000000 characters: at most 20000"),
        (document({"content": "x", "colour": "red"}), "unknown field 'colour'"),
        (document({"content": "  "}), "needs a content"),
        (document("x"), "to-do 1 is str"),
        (document({"id": "a", "content": "x", "depends_on": ["a"]}), "a depends on itself"),
        (document({"id": "a", "content": "x", "depends_on": ["b"]}), "depends on b, which does not exist"),
        (
            document(
                {"id": "a", "content": "x", "depends_on": ["b"]}, {"id": "b", "content": "y", "depends_on": ["a"]}
            ),
            "in a circle",
        ),
        (document({"id": "a", "content": "x", "depends_on": "b"}), "depends_on must be a list"),
    ],
)
def test_a_bad_document_changes_nothing(todos: TodoList, text: str, sentence: str) -> None:
    todos.add("Stay", "low", "ada")
    with pytest.raises(UsageError, match=sentence):
        todos.load(text, "ada")
    assert [item.content for item in todos.items()] == ["Stay"]


def test_control_characters_and_markup_are_shown_not_obeyed(todos: TodoList) -> None:
    text = "[bold]red[/bold]\x1b[31m\x00\u202e<script>\ud800 tab\tnewline\n"
    item = todos.add(text, "low", "ada")
    assert item.content == "[bold]red[/bold]\\u001b[31m\\u0000\\u202e<script>\\ud800 tab\tnewline\n"
    assert todos.load(todos.export(), "ada") == 1


def test_ten_thousand_items(todos: TodoList) -> None:
    many = document(
        *({"id": f"t{n}", "content": f"Do {n}", "depends_on": [f"t{n - 1}"] * (n % 2)} for n in range(10_000))
    )
    assert todos.load(many, "ada") == 10_000
    assert len(todos.items()) == 10_000
    assert len(todos.ready()) == 5_000


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "content": st.text(min_size=1, max_size=50).filter(lambda text: text.strip()),
                "status": st.sampled_from(["pending", "in_progress", "completed", "cancelled"]),
                "priority": st.sampled_from(["high", "medium", "low"]),
            }
        ),
        max_size=6,
    )
)
def test_any_list_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, items: list[Any]) -> None:
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('todos')}/state.db") as store:
        todos = TodoList(store)
        assert todos.load(json.dumps(items), "ada") == len(items)
        text = todos.export()
        todos.load(text, "ada")
        assert todos.export() == text
