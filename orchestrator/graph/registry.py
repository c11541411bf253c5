"""Graphs reach the program through the entry-point group `orchestrate.graphs`, ours and a user's alike."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.model import GraphSpec
from orchestrator.graph.plan import Plan

GROUP = "orchestrate.graphs"


@dataclass(frozen=True)
class GraphRequest:
    """For whom a graph is built: the host's name and configuration, the --set values, and what the command gives."""

    host_name: str
    host_config: Any
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


Builder = Callable[[GraphRequest], GraphSpec]


def graph_names() -> list[str]:
    """The names of every installed graph."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_graph(name: str, request: GraphRequest) -> GraphSpec:
    """Builds and checks the graph `name`; UsageError for an unknown name or a builder that does not fit or fails."""
    builder = _builder(name)
    try:
        spec = builder(request)
    except OrchestrateError:
        raise
    except Exception as error:
        raise UsageError(f"graph {name}: its builder failed with {type(error).__name__}: {error}") from error
    if not isinstance(spec, GraphSpec):
        raise UsageError(f"graph {name}: its entry point gave {type(spec).__name__}, it must give a GraphSpec")
    Plan(spec)
    return spec


def _builder(name: str) -> Builder:
    point = _entry_point(name)
    try:
        builder = point.load()
    except Exception as error:  # whatever somebody else's module raises
        raise UsageError(f"graph {name}: its entry point {point.value} cannot be imported ({error})") from error
    if not callable(builder):
        raise UsageError(f"graph {name}: its entry point {point.value} is not a function")
    found: Builder = builder
    return found


def _entry_point(name: str) -> EntryPoint:
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        near = difflib.get_close_matches(name, graph_names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(graph_names()) or 'none'}"
        raise UsageError(f"there is no graph {name}: {hint}")
    values = {point.value for point in points}
    if len(values) > 1:
        raise UsageError(f"graph {name} is offered by several packages ({', '.join(sorted(values))}): uninstall one")
    return points[0]
