"""A run as one self-contained folder, for a ticket or an archive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.graph.events import history, to_line
from orchestrator.store.artifacts import Artifact
from orchestrator.store.records import outcome_to_json
from orchestrator.store.store import Store


def export_run(store: Store, run_id: str, folder: Path) -> list[Path]:
    """Writes run, tasks, evidence, notes, metrics, events, a log per task and every kept file into an empty `folder`.

    Returns what was written. files.json lists every kept file, also those that lie on another machine (`missing_files`).
    """
    run = store.runs.get(run_id)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: choose a new one")
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _json(folder / "run.json", {**asdict(run), "outcome": json.loads(outcome_to_json(run.outcome) or "null")}),
        _json(folder / "tasks.json", [asdict(task) for task in store.tasks.list(run.id)]),
        _json(folder / "evidence.json", [asdict(item) for item in store.evidence.of_run(run.id)]),
        _json(folder / "notes.json", [asdict(note) for note in store.notes.list() if note.run_id in (run.id, None)]),
        _json(folder / "metrics.json", [asdict(fact) for fact in store.facts.list("metric", run_id=run.id)]),
        *_events(store, run.id, folder),
        *_files(store, run.id, folder / "files"),
    ]


def _json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")
    return path


def _events(store: Store, run_id: str, folder: Path) -> Iterable[Path]:
    """All events as JSON lines, and the log lines of each task as plain text."""
    logs = folder / "logs"
    logs.mkdir()
    with open(folder / "events.jsonl", "w", encoding="utf-8") as stream:
        for event in history(store, run_id):
            stream.write(to_line(event) + "\n")
            if event.kind == "log" and event.task_key:
                with open(logs / f"{event.task_key}.log", "a", encoding="utf-8", errors="backslashreplace") as log:
                    log.write(f"{event.data['line']}\n")
    return [folder / "events.jsonl", *sorted(logs.iterdir())]


def missing_files(store: Store, run_id: str) -> list[Artifact]:
    """Kept files whose content is not here: it lies beside the program that kept it, also with a shared store."""
    return [item for item in store.artifacts.list(store.runs.get(run_id).id) if not item.path.exists()]


def _files(store: Store, run_id: str, folder: Path) -> Iterable[Path]:
    written, index = [], []
    for item in store.artifacts.list(run_id):
        name = Path(item.name).name
        target = folder / item.task_key / (name if name.strip(".") else "unnamed")
        if target.exists():  # another attempt kept a file of the same name
            target = target.with_name(f"{item.sha256[:8]}-{target.name}")
        here = item.path.exists()
        if here:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(item.path, target)
            written.append(target)
        facts = {"task": item.task_key, "name": item.name, "sha256": item.sha256, "size": item.size}
        index.append(facts | {"file": str(target.relative_to(folder.parent)) if here else None})
    return [_json(folder.parent / "files.json", index), *written]
