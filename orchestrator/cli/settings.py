"""Settings of a graph as the command line gives them."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import UsageError
from orchestrator.hosts.secrets import MASK


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


def resumed_settings(run_id: str, earlier: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What a run was begun with, and over it what is given now; a secret was not kept, so it must be given again."""
    settings = {**earlier, **given}
    lost = [name for name, value in settings.items() if MASK in name or MASK in value]
    if lost:
        again = "--reason" if lost[0] == "reason" else f"--set {lost[0]}=VALUE"
        raise UsageError(
            f"The run {run_id} was begun with a secret in {', '.join(lost)}, which is not kept: give it again ({again})."
        )
    return settings
