"""What commands that were started from the screen leave in `.run/`."""

from __future__ import annotations

import threading
from pathlib import Path

from orchestrator.cli.detached import DetachedCommand, own_file
from orchestrator.tui.process import KEPT_COMMANDS, Program


def test_old_commands_are_tidied_away_unless_they_still_run(tmp_path: Path) -> None:
    folder, over = tmp_path / ".run", threading.Event()
    folder.mkdir()
    for number in range(KEPT_COMMANDS + 5):
        (folder / f"tui-20010101T0000{number:02}-1-1.log").write_text("progress")
        own_file(folder, f"tui-20010101T0000{number:02}-1-1").close()
    ended: list[DetachedCommand] = []

    def end(command: DetachedCommand) -> None:
        ended.append(command)
        over.set()

    with own_file(folder, "tui-20000101T000000-1-1") as oldest:
        (folder / "tui-20000101T000000-1-1.log").write_text("at work")
        Program(tmp_path / "hosts.yaml", f"sqlite:///{tmp_path / 'state.db'}").start(("history",), end)
        assert Path(oldest.name).exists()
        assert (folder / "tui-20000101T000000-1-1.log").exists()
    kept = list(folder.glob("tui-*.json"))
    assert len(kept) == KEPT_COMMANDS + 1
    assert not (folder / "tui-20010101T000000-1-1.log").exists()
    assert over.wait(60)
    assert ended[0].output in kept
