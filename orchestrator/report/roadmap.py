"""The roadmap document: a pure projection of the store. The same store gives the same bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from orchestrator.documents import write_whole
from orchestrator.errors import OrchestrateError
from orchestrator.report.roadmap_view import RoadmapView, roadmap_view
from orchestrator.store.jsontext import clean_text
from orchestrator.store.store import Store

NAME = "sglang-ddtree-roadmap.md"
HASH_LINE = re.compile(r"^<!-- generated, sha256 ([0-9a-f]{64}) -->\n", re.M)
NOTES_START, NOTES_END = "<!-- notes: yours to edit -->", "<!-- end of notes -->"
HEADING = "\n\n## Notes\n\n"
EMPTY_NOTES = "\nWrite here; this section is kept when the roadmap is regenerated.\n"


class RoadmapDrift(OrchestrateError):
    """The file differs from what the store says, or was edited by hand outside its notes."""


@dataclass(frozen=True)
class Written:
    """The file, the hash of its generated part, whether it differs from before, and where hand edits were kept."""

    path: Path
    sha256: str
    changed: bool
    kept: Path | None = None


def roadmap_path(home: Path) -> Path:
    return home / "roadmap" / NAME


def regenerate(store: Store, home: Path, *, run_id: str | None = None, check: bool = False) -> Written:
    """Write the roadmap (and its plot), or with check only compare: RoadmapDrift says what differs.

    run_id: the run to show; default the newest deployment in the store. A file that was edited by hand outside its
    notes is kept under another name before it is replaced.
    """
    view = roadmap_view(store, run_id)
    path = roadmap_path(home)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    body = render(view)
    digest = hashlib.sha256(body.encode()).hexdigest()
    text = f"<!-- generated, sha256 {digest} -->\n{body}{HEADING}{NOTES_START}{_notes(old)}{NOTES_END}\n"
    kept = None
    if check:
        _compare(path, old, digest)
    elif text != old:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_plot(view, path.parent)
        kept = _keep_edited(path, old)
        write_whole(path, text)
    return Written(path, digest, text != old, kept)


def render(view: RoadmapView) -> str:
    """The generated part as Markdown."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files("roadmap").joinpath("roadmap.md.j2").read_text("utf-8"))
    return template.render(**_escaped(vars(view)))


def write_copy(store: Store, run_id: str, folder: Path) -> list[Path]:
    """The generated part and its plot for one run, for an archive: no notes, nothing to regenerate."""
    view = roadmap_view(store, run_id)
    path = folder / NAME
    path.write_text(render(view) + "\n", encoding="utf-8")
    return [path, *_write_plot(view, folder)]


def _compare(path: Path, old: str, digest: str) -> None:
    if not old:
        raise RoadmapDrift(f"{path} does not exist; `orchestrate roadmap` writes it.")
    edited = _edited(old)
    if edited:
        raise RoadmapDrift(f"{path} {edited}.")
    if _recorded(old) != digest:
        raise RoadmapDrift(f"{path} is older than the store; `orchestrate roadmap` brings it up to date.")


def _recorded(old: str) -> str | None:
    match = HASH_LINE.match(old)
    return match.group(1) if match else None


def _edited(old: str) -> str:
    """What a hand did to the generated part, '' when it is as it was written."""
    match = HASH_LINE.match(old)
    start = old.find(NOTES_START)
    if match is None or not 0 <= start < old.rfind(NOTES_END):
        return "has lost its generated marks; `orchestrate roadmap` keeps a copy and writes it anew"
    generated = old[match.end() : start].removesuffix(HEADING)
    if hashlib.sha256(generated.encode()).hexdigest() != match.group(1):
        return "was edited by hand outside its notes; move the edit there, then regenerate"
    return ""


def _keep_edited(path: Path, old: str) -> Path | None:
    if not old or not _edited(old):
        return None
    copy = path.with_name(f"{path.stem}.edited-{hashlib.sha256(old.encode()).hexdigest()[:8]}{path.suffix}")
    write_whole(copy, old)
    return copy


def _notes(old: str) -> str:
    start, end = old.find(NOTES_START), old.rfind(NOTES_END)
    return old[start + len(NOTES_START) : end] if 0 <= start < end else EMPTY_NOTES


def _write_plot(view: RoadmapView, folder: Path) -> list[Path]:
    if view.plot is None or not view.arms:
        return []
    target = folder / view.plot
    if view.plot_is_final and target.exists():
        return [target]
    from orchestrator.report.plots import speed_by_budget

    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(speed_by_budget(view.arms, view.margin).png)
    return [target]


def _escaped(value: Any) -> Any:
    """Text of tasks, notes and hosts as one Markdown table cell: no line breaks, pipes, HTML, links or pictures."""
    if isinstance(value, str):
        flat = " ".join(clean_text(value).split())
        return flat.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value
