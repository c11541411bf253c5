"""Opens what commands work with: inventory, store and hosts of one folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from orchestrator.cli.context import Cli
from orchestrator.errors import UsageError
from orchestrator.operations import Workplace
from orchestrator.store.store import open_store


@contextlib.contextmanager
def workplace(cli: Cli, *, read_only: bool = False) -> Iterator[Workplace]:
    """The workplace of this invocation; the store is closed at the end."""
    store = open_store(cli.store_url, read_only=read_only)
    try:
        yield Workplace(cli.home, cli.inventory, store)
    finally:
        store.close()


def read_settings(pairs: tuple[str, ...], reason: str | None = None) -> dict[str, str]:
    """`--set name=value` options as a mapping; --reason is the setting of that name."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {pair}: write it as name=value.")
        settings[name.strip()] = value.strip()
    if reason is not None:
        settings["reason"] = reason
    return settings
