"""The roadmap as a projection of the store: the same bytes, hand edits found, notes kept, nothing hostile let through."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from orchestrator.bench.summary import ArmSummary, Standing
from orchestrator.graph.export import export_run
from orchestrator.graph.model import GraphSpec
from orchestrator.graph.runner import Runner
from orchestrator.graph.todolist import TodoList
from orchestrator.hosts.inventory import HostConfig
from orchestrator.report.roadmap import NOTES_START, RoadmapDrift, regenerate, roadmap_path, write_copy
from orchestrator.store.store import Store
from tasks.knobs import MEANINGS, read_knobs
from tasks.roadmap import RegenerateRoadmap, gain_rows, knob_rows, prediction_rows
from tests.graph.conftest import Do, task

EVIL = 'say "x" | <img src=http://evil/x> [click](http://evil) ![p](http://evil)\n# heading\x1b[31m \u202e'
CONFIG = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")
SETTINGS = {"budgets": "15,32", "pairs": "4", "nodes": "15"}


def arm(budget: int, ratio: float) -> dict[str, Any]:
    return ArmSummary(
        budget, 1, 4, 0, 4, 8, ratio, (ratio - 0.1, ratio + 0.1), (ratio - 0.1, ratio + 0.1), 0.1, 0.05, 50.0,
        50.0 * ratio, 2.0, 3.0, 2.0, 20.0, 20.0, Standing.OPEN, 10, "only 4 of 10 valid pairs",
    ).to_json()  # fmt: skip


def gives(output: Mapping[str, Any]) -> Do:
    return Do(apply=lambda ctx: output)


def deployment(measured_as: str = "inconclusive", why: str = "only 4 of 10 valid pairs") -> GraphSpec:
    """What the roadmap reads of a deployment, with given figures, and the real task at the end."""
    needed = 10 if measured_as == "inconclusive" else None
    verdict = {"decision": measured_as, "reason": "only 4 of 10 valid pairs", "pairs_needed": needed}
    decided = {"decision": "inconclusive", "by": "measurement", "why": why}
    measured = {"arms": [arm(15, 1.2), arm(32, 1.4)], "verdict": verdict, "settings": {"margin": 0.02}}
    gains = {"15": 0.31, "32": 0.4653}
    return GraphSpec(
        "deploy-ddtree",
        (
            task("inspect-model", gives({"model": {"measured_gain": gains, "measured_on": "2 prompts, oracle"}})),
            task("inspect-sglang", gives({"predictions": []}), "inspect-model"),
            task("map-risks", gives({"risks": [dict.fromkeys(("id", "evidence", "consequence", "what_to_do"), EVIL)]})),
            task("compare", gives({"equal": 8, "prompts": 8}), "inspect-sglang"),
            task("benchmark", gives(measured), "compare"),
            task("decide", gives(decided), "benchmark"),
            task("roadmap", RegenerateRoadmap(), "decide", "map-risks"),
        ),
    )


def test_what_more_pairs_would_not_decide_is_named(tmp_path: Path, store: Store) -> None:
    host = SimpleNamespace(name="local", config=CONFIG, state_dir=tmp_path)
    graph = deployment("adopt", "it pays at 1 only")
    Runner(store, graph, lambda name: host, host="local", settings=SETTINGS).run("r1")
    assert "Measure again: it pays at 1 only" in text(tmp_path)


@pytest.fixture
def home(tmp_path: Path, store: Store) -> Path:
    """The folder of an inventory whose store holds one deployment."""
    store.notes.add("decision", EVIL, "ada@bench", "decide")
    TodoList(store).add(EVIL, "high", "ada")
    host = SimpleNamespace(name="local", config=CONFIG, state_dir=tmp_path)
    result = Runner(store, deployment(), lambda name: host, host="local", settings=SETTINGS).run("r1")
    assert result.exit_code == 0, result.reason
    return tmp_path


def text(home: Path) -> str:
    return roadmap_path(home).read_text(encoding="utf-8")


def test_it_holds_the_knobs_the_data_and_expected_beside_measured(home: Path) -> None:
    found = text(home)
    assert "| `pairs` | 4 | paired measurements per budget |" in found
    assert "| `budgets` | 15, 32 |" in found
    assert all(f"| `{name}` |" in found for name in MEANINGS)
    assert "- Prompt set code: 8 prompts." in found
    assert "8 greedy prompts, token by token, DDTree with B=15" in found
    assert "| greedy outputs equal to the linear service's | all |" in found
    assert "| 8 of 8 |" in found
    assert "| tokens per step against the chain, B=15 | 1.310x | 2 prompts, oracle | 1.500x |" in found
    assert "| 1.400x at B=32 |" in found
    assert "Measure again with `--set pairs=10`" in found


def test_the_same_store_gives_the_same_bytes_in_another_process(home: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from orchestrator.report.roadmap import regenerate\n"
        "from orchestrator.store.store import open_store\n"
        "with open_store(sys.argv[1], read_only=True) as store: regenerate(store, Path(sys.argv[2]))"
    )
    files = []
    for number, zone in enumerate(("UTC", "Asia/Kathmandu")):
        folder = home / f"elsewhere{number}"
        env = {**os.environ, "PYTHONHASHSEED": str(number + 1), "TZ": zone, "LC_ALL": "C"}
        subprocess.run([sys.executable, "-c", program, f"sqlite:///{home}/state.db", folder], check=True, env=env)
        files.append({path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()})
    assert files[0] == files[1]
    assert len(files[0]) == 2  # the document and its plot


def test_hand_edits_are_found_and_notes_are_kept(store: Store, home: Path) -> None:
    assert not regenerate(store, home, check=True).changed
    path = roadmap_path(home)
    mine = text(home).replace("Write here;", "Ask Grace before Friday.\n\nWrite here;")
    path.write_text(mine, encoding="utf-8")
    assert not regenerate(store, home).changed
    path.write_text(mine.replace("| `pairs` | 4 |", "| `pairs` | 40 |"), encoding="utf-8")
    with pytest.raises(RoadmapDrift, match="edited by hand outside its notes"):
        regenerate(store, home, check=True)
    edited = text(home)
    kept = regenerate(store, home).kept
    assert kept is not None
    assert kept.read_text(encoding="utf-8") == edited
    assert text(home) == mine
    store.notes.add("risk", "the fan is loud", "grace")
    with pytest.raises(RoadmapDrift, match="older than the store"):
        regenerate(store, home, check=True)
    regenerate(store, home)
    assert "the fan is loud" in text(home)
    assert "Ask Grace before Friday." in text(home)


def test_notes_whose_marks_were_deleted_are_not_lost(store: Store, home: Path) -> None:
    mine = text(home).replace("Write here;", "Ask Grace.").replace(NOTES_START, "")
    roadmap_path(home).write_text(mine, encoding="utf-8")
    with pytest.raises(RoadmapDrift, match="keeps a copy and writes it anew"):
        regenerate(store, home, check=True)
    kept = regenerate(store, home).kept
    assert kept is not None
    assert "Ask Grace." in kept.read_text(encoding="utf-8")
    assert regenerate(store, home, check=True).kept is None


def test_hostile_text_stays_text(home: Path) -> None:
    generated = text(home).split(NOTES_START)[0].partition("\n")[2]  # without the line of the hash
    tokens = MarkdownIt("commonmark").enable("table").parse(generated)
    inline = [child for token in tokens for child in token.children or []]
    links = [token.attrs for token in inline if token.type in ("link_open", "image")]
    assert [attrs.get("src") for attrs in links] == ["plots/r1.png"]
    assert [token.content for token in [*tokens, *inline] if token.type.startswith("html")] == []
    assert "\x1b" not in generated
    assert "\u202e" not in generated
    assert "\n# heading" not in generated
    rows = [line for line in generated.splitlines() if "evil" in line]
    assert len(rows) == 3  # the note, the to-do and the risk, each still one row


def test_a_copy_for_a_ticket_holds_document_and_plot(store: Store, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ticket"
    export_run(store, "r1", folder)
    document, plot = write_copy(store, "r1", folder)
    assert f"](plots/{plot.name})" in document.read_text(encoding="utf-8")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_an_older_run_shows_its_own_knobs(store: Store, home: Path) -> None:
    store.facts.add("roadmap.plan", "local", {"knobs": [], "testing": [], "expectations": []}, "local", "r2")
    regenerate(store, home, run_id="r1")
    assert "| `pairs` | 4 |" in text(home)


def test_rows_of_the_plan() -> None:
    rows = {row["name"]: row["value"] for row in knob_rows(read_knobs(CONFIG, {"margin": "0.05"}))}
    assert rows["margin"] == "0.05"
    assert rows["decide"] == "not set"
    assert set(MEANINGS) < set(rows)
    assert [row["expected"] for row in gain_rows((8, 16, 64), {"15": 0.25, "64": 0.5}, "here")] == ["1.250x", "1.500x"]
    predicted = [{"nodes": 64, "break_even_gain": 0.12, "ratio_to_linear": 1.1}]
    assert [row["expected"] for row in prediction_rows((32, 64), predicted)] == ["at least 1.120x"]
