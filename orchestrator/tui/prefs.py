"""What the TUI remembers between sessions: theme, view, split, wrap. Preferences only, nothing about runs."""

from __future__ import annotations

import json
import os
from collections.abc import Container
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from orchestrator.tui.look import DEFAULT_THEME
from orchestrator.wholefile import replacing


@dataclass
class Prefs:
    """Loaded from a small JSON file; one that cannot be read or written only costs the memory of it."""

    theme: str = DEFAULT_THEME
    view: str = "run"
    share: int = 2
    wrap: bool = True
    path: Path | None = None

    @staticmethod
    def load(path: Path | None = None) -> Prefs:
        path = path or default_path()
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            data = {}
        prefs = Prefs(path=path)
        for field in fields(Prefs):
            value = data.get(field.name) if isinstance(data, dict) else None
            if field.name != "path" and type(value) is type(getattr(prefs, field.name)):
                setattr(prefs, field.name, value)
        return prefs

    def theme_among(self, known: Container[str]) -> str:
        return self.theme if self.theme in known else DEFAULT_THEME

    def save(self) -> None:
        if self.path is None:
            return
        data = {name: value for name, value in asdict(self).items() if name != "path"}
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as part:
                part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def default_path() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "orchestrate" / "tui.json"
