"""A graph as a checked plan: order, dependants, and sentences about what is wrong with it."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from orchestrator.errors import UsageError
from orchestrator.graph.model import GraphSpec, TaskSpec
from orchestrator.store.jsontext import canonical

MAX_CONTENT = 20_000
SAID = 8  # of what is wrong, or of a circle, at most this many are named in a sentence


class GraphError(UsageError):
    """The graph cannot be run; every sentence names the task."""

    def __init__(self, graph: str, problems: list[str]) -> None:
        more = [f"and {len(problems) - SAID} more problems"] if len(problems) > SAID else []
        super().__init__(f"graph {graph}: {'; '.join([*problems[:SAID], *more])}")
        self.problems = problems


class Plan:
    """A valid graph with what the runner asks of it. Raises GraphError for one that is not valid."""

    def __init__(self, graph: GraphSpec) -> None:
        problems = find_problems(graph)
        if problems:
            raise GraphError(graph.name, problems)
        self.graph = graph
        self.specs: Mapping[str, TaskSpec] = {spec.key: spec for spec in graph.tasks}
        self.order: tuple[str, ...] = _stable_order(graph.tasks)
        self.dependants: dict[str, list[str]] = {key: [] for key in self.specs}
        for spec in graph.tasks:
            for key in spec.depends_on:
                self.dependants[key].append(spec.key)

    @property
    def definition(self) -> str:
        """A hash of what a resumed run relies on: keys, edges, hosts and which tasks change the host."""
        shape = [[spec.key, sorted(spec.depends_on), spec.changes_host, spec.host] for spec in self.graph.tasks]
        return hashlib.sha256(canonical([self.graph.name, sorted(shape)]).encode()).hexdigest()[:16]

    def ready(self, done: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
        """The tasks, in order, whose dependencies are all in `done` and that are in neither set themselves."""
        done_set, out = set(done), set(taken)
        return [
            key
            for key in self.order
            if key not in done_set and key not in out and done_set.issuperset(self.specs[key].depends_on)
        ]

    def needed_for(self, keys: Iterable[str]) -> set[str]:
        """`keys` and everything they depend on."""
        return self._closure(keys, lambda key: self.specs[key].depends_on)

    def following(self, keys: Iterable[str]) -> set[str]:
        """Everything that depends on `keys`, without them."""
        start = set(keys)
        return self._closure(start, lambda key: self.dependants[key]) - start

    def check_keys(self, keys: Iterable[str], option: str) -> None:
        """Raises UsageError, with the nearest name, for a key that the graph does not have."""
        for key in keys:
            if key not in self.specs:
                near = difflib.get_close_matches(key, self.specs, 1)
                hint = f"did you mean {near[0]}?" if near else f"`orchestrate plan {self.graph.name}` lists them"
                raise UsageError(f"{option} {key}: graph {self.graph.name} has no such task; {hint}")

    def _closure(self, keys: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
        found: set[str] = set()
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo.extend(step(key))
        return found


def find_problems(graph: GraphSpec) -> list[str]:
    """One sentence for each thing that is wrong, [] for a valid graph."""
    circle = _circle(graph)
    return [
        *_duplicates(graph),
        *_bad_fields(graph),
        *_bad_edges(graph),
        *([f"tasks depend on each other in a circle: {around(circle)}"] if circle else []),
        *_never_reached(graph, circle),
        *_duplicate_effects(graph),
    ]


def named(keys: list[str]) -> str:
    """Keys for a sentence; of many some are named and the rest counted."""
    more = [f"{len(keys) - SAID} more"] if len(keys) > SAID else []
    return ", ".join([*keys[:SAID], *more])


def around(circle: list[str]) -> str:
    """A circle as one readable line; of a long one the middle is only counted."""
    if len(circle) <= 2 * SAID:
        return " -> ".join(circle)
    return " -> ".join([*circle[:SAID], f"({len(circle) - SAID - 1} more)", circle[-1]])


def _duplicates(graph: GraphSpec) -> list[str]:
    seen: set[str] = set()
    found = []
    for spec in graph.tasks:
        if spec.key in seen:
            found.append(f"task {spec.key} is defined twice")
        seen.add(spec.key)
    return found if graph.tasks else ["it has no tasks"]


def _bad_fields(graph: GraphSpec) -> list[str]:
    found = []
    for spec in graph.tasks:
        if not spec.key or not all(part.isalnum() for part in spec.key.replace("-", " ").replace("_", " ").split()):
            found.append(f"task key {spec.key!r} must be letters, digits, - and _")
        if len(spec.content) > MAX_CONTENT:
            found.append(f"task {spec.key} has a content of {len(spec.content)} characters, at most {MAX_CONTENT}")
        if not spec.content.strip():
            found.append(f"task {spec.key} has no content")
        if spec.timeout_s <= 0:
            found.append(f"task {spec.key} has a time-out of {spec.timeout_s} s, it must be above 0")
        if spec.retry.attempts < 1:
            found.append(f"task {spec.key} allows {spec.retry.attempts} attempts, it needs at least 1")
    return found


def _bad_edges(graph: GraphSpec) -> list[str]:
    keys = {spec.key for spec in graph.tasks}
    found = []
    for spec in graph.tasks:
        for key in spec.depends_on:
            if key == spec.key:
                found.append(f"task {spec.key} depends on itself")
            elif key not in keys:
                found.append(f"task {spec.key} depends on {key}, which is not in the graph")
    return found


def _circle(graph: GraphSpec) -> list[str]:
    """Keys of tasks that depend on each other, the first one again at the end; [] when there is no circle."""
    edges = {spec.key: [key for key in spec.depends_on if key != spec.key] for spec in graph.tasks}
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _duplicate_effects(graph: GraphSpec) -> list[str]:
    owners: dict[int, str] = {}
    found = []
    for spec in graph.tasks:
        if spec.changes_host:
            other = owners.setdefault(id(spec.action), spec.key)
            if other != spec.key:
                found.append(f"tasks {other} and {spec.key} share one action that changes the host")
    return found


def _never_reached(graph: GraphSpec, circle: list[str]) -> list[str]:
    """Tasks behind a missing dependency or the circle: they are fine themselves, but nothing would ever start them."""
    followers: dict[str, list[int]] = {}
    waits = [len(set(spec.depends_on)) for spec in graph.tasks]
    for index, spec in enumerate(graph.tasks):
        for key in set(spec.depends_on):
            followers.setdefault(key, []).append(index)
    reached: set[str] = set()
    ready = [index for index, count in enumerate(waits) if count == 0]
    while ready:
        key = graph.tasks[ready.pop()].key
        for index in followers.get(key, []) if key not in reached else []:
            waits[index] -= 1
            if waits[index] == 0:
                ready.append(index)
        reached.add(key)
    left = [spec for spec in graph.tasks if spec.key not in reached]
    stuck = {spec.key for spec in left}
    named = set(circle)
    return [
        f"task {spec.key} can never be reached, because it depends on {key}"
        for spec in left
        if spec.key not in named
        for key in sorted(stuck.intersection(spec.depends_on) - {spec.key})[:1]
    ]


def _stable_order(tasks: tuple[TaskSpec, ...]) -> tuple[str, ...]:
    """Topological, and as written wherever the edges leave a choice."""
    position = {spec.key: index for index, spec in enumerate(tasks)}
    sorter = TopologicalSorter({spec.key: spec.depends_on for spec in tasks})
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        batch = sorted(sorter.get_ready(), key=position.__getitem__)
        order.extend(batch)
        sorter.done(*batch)
    return tuple(order)
