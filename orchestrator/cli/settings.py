"""Settings of a graph as the command line gives them."""

from __future__ import annotations

from orchestrator.errors import UsageError


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
