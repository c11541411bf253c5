"""Starts the TUI on a terminal, or its plain twin where there is none."""

from __future__ import annotations

from pathlib import Path


def open_tui(store_url: str, run_id: str | None, hosts_file: Path, *, no_color: bool = False, view: str = "") -> int:
    """Shows a run (None: the active or newest one) until it is closed; returns the exit code of the program.

    Closing it leaves runs alone. The store is opened for reading only.
    """
    from orchestrator.tui.app import OrchestrateApp
    from orchestrator.tui.prefs import Prefs

    app = OrchestrateApp(store_url, run_id, hosts_file, Prefs.load(), no_color=no_color, view=view)
    return app.run() or 0
