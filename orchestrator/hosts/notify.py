"""Telling somebody else that a run ended: a webhook or a command of hosts.yaml, with the run's document as JSON."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from orchestrator.documents import encode
from orchestrator.errors import UsageError
from orchestrator.hosts import secrets
from orchestrator.hosts.inventory import HostConfig

WEBHOOK_S, COMMAND_S = 10.0, 30.0


def notify(config: HostConfig, document: Mapping[str, Any], mask: Callable[[str], str]) -> list[str]:
    """Call what `notify` names; returns a sentence for each call that did not work.

    The webhook gets the document as the body of a POST, the command on its standard input. Neither changes how the run
    ended.
    """
    if config.notify.webhook is None and not config.notify.command:
        return []
    text = mask(encode(document))
    problems = []
    if config.notify.webhook is not None:
        problems.append(_webhook(config, config.notify.webhook, text))
    if config.notify.command:
        problems.append(_command(config, text))
    return [f"hosts.{config.name}.notify: {problem}" for problem in problems if problem]


def _webhook(config: HostConfig, reference: str, text: str) -> str:
    """The URL may hold a token, so it is in no message."""
    try:
        url = secrets.resolve(reference, what=f"hosts.{config.name}.notify.webhook")
        answer = httpx.post(url, content=text.encode(), headers={"Content-Type": "application/json"}, timeout=WEBHOOK_S)
    except UsageError as error:
        return str(error)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"the webhook could not be called ({type(error).__name__}); check its address."
    return "" if answer.is_success else f"the webhook answered {answer.status_code}; check its address and token."


def _command(config: HostConfig, text: str) -> str:
    command = config.notify.command
    try:
        done = subprocess.run(list(command), input=text.encode(), capture_output=True, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {COMMAND_S:g} s; let it do its work in the background."
    except OSError as error:
        return f"{command[0]} could not be started ({error.strerror}); give its whole path."
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
    return f"{command[0]} ended with exit code {done.returncode} ({said[0][:200]})." if done.returncode else ""
