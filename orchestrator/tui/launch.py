"""Starts the TUI on a terminal, or its plain twin where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchestrator.store.jsontext import clean_text
from orchestrator.store.store import open_store


def open_tui(store_url: str, run_id: str | None, hosts_file: Path, *, no_color: bool = False, view: str = "") -> int:
    """Shows a run (None: the active or newest one) until it is closed; returns the exit code of the program.

    Closing it leaves runs alone. The store is opened for reading only. Without a terminal it prints lines instead.
    UsageError for a run that is not in the store.
    """
    in_browser = "TEXTUAL_DRIVER" in os.environ  # textual-serve talks through pipes
    if not in_browser and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return open_plain(store_url, run_id)
    if run_id is not None:
        with open_store(store_url, read_only=True) as store:
            run_id = store.runs.get(run_id).id
    from orchestrator.tui.app import OrchestrateApp
    from orchestrator.tui.prefs import Prefs

    app = OrchestrateApp(store_url, run_id, hosts_file, Prefs.load(), no_color=no_color, view=view)
    app.run()
    return app.return_code or 0


def open_plain(store_url: str, run_id: str | None) -> int:
    """The same information as lines on stdout, until the run ends; returns the exit code of the run."""
    from orchestrator.tui.plain import follow_plain

    return follow_plain(store_url, run_id, lambda text: print(clean_text(text), flush=True))
