"""Opens what commands work with: inventory, store and hosts of one folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from orchestrator.cli.context import Cli
from orchestrator.hosts.secrets import Masker, known_values
from orchestrator.operations import Workplace
from orchestrator.store.store import open_store, open_to_read


@contextlib.contextmanager
def workplace(cli: Cli, *, read_only: bool = False) -> Iterator[Workplace]:
    """The workplace of this invocation; the store is closed at the end."""
    store = open_to_read(cli.store_url) if read_only else open_store(cli.store_url)
    try:
        masker = Masker(known_values([config.model_dump() for config in cli.inventory.hosts.values()]))
        yield Workplace(
            cli.home, cli.inventory, store, masker, FirstUseProgress(cli), lambda text: cli.out.note(f"  {text}")
        )
    finally:
        store.close()


class FirstUseProgress:
    """Shows how an embedded host is provisioned: each new step at once, a repeated one every few seconds."""

    EVERY_S = 5.0

    def __init__(self, cli: Cli) -> None:
        self._out = cli.out
        self._started = time.monotonic()
        self._said_at = 0.0
        self._said = ""

    def __call__(self, text: str, done: float | None, total: float | None) -> None:
        now = time.monotonic()
        if text.split(" ")[0] == self._said.split(" ")[0] and now - self._said_at < self.EVERY_S:
            return
        self._said, self._said_at = text, now
        share = f" ({done:.0f}/{total:.0f})" if done is not None and total else ""
        self._out.note(f"  first use, {now - self._started:4.0f} s: {text}{share}", style="dim")
