"""Reading hosts.yaml: every error names the file, the line and the field."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from orchestrator.errors import UsageError
from orchestrator.hosts import secrets
from orchestrator.hosts.inventory import HostConfig, Inventory

TOP_KEYS = ("defaults", "hosts", "groups")
Location = tuple[str | int, ...]


def load_inventory(path: Path) -> Inventory:
    """Read and check an inventory file.

    Raises UsageError with `FILE:LINE: FIELD: what is wrong` for the first problem found.
    """
    document = _parse(path)
    _check_top(document, path)
    _refuse_secrets(document, path)
    defaults = document.get("defaults") or {}
    hosts: dict[str, HostConfig] = {}
    for name, entry in (document.get("hosts") or {}).items():
        hosts[str(name)] = _host(str(name), entry, defaults, document, path)
    if not hosts:
        raise UsageError(f"{path}: there is no host under `hosts`; `orchestrate init` writes an example.")
    groups = _groups(document, hosts, path)
    return Inventory(hosts=hosts, groups=groups, path=path.resolve())


def select_host(inventory: Inventory, name: str | None) -> HostConfig:
    """The named host, or the only/first one when no name is given."""
    if name is None:
        return next(iter(inventory.hosts.values()))
    if name not in inventory.hosts:
        known = ", ".join(inventory.hosts)
        raise UsageError(f"There is no host {name!r} in {inventory.path}; known hosts: {known}.")
    return inventory.hosts[name]


def _parse(path: Path) -> CommentedMap:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist; `orchestrate init` writes one.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: not valid YAML: {_first_line(error.problem)}.") from error
    except YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {_first_line(str(error))}.") from error
    if not isinstance(document, CommentedMap):
        raise UsageError(f"{path}:1: expected a mapping with the keys hosts, defaults and groups.")
    return document


def _first_line(text: str | None) -> str:
    lines = (text or "unknown problem").strip().splitlines() or ["unknown problem"]
    return lines[0].rstrip(".")


def _check_top(document: CommentedMap, path: Path) -> None:
    for key in document:
        if key not in TOP_KEYS:
            raise UsageError(f"{path}:{_line(document, (key,))}: {key}: unknown key{_hint(str(key), TOP_KEYS)}.")
    for key in TOP_KEYS:
        value = document.get(key)
        if value is not None and not isinstance(value, CommentedMap):
            raise UsageError(f"{path}:{_line(document, (key,))}: {key}: must be a mapping.")


def _refuse_secrets(document: CommentedMap, path: Path) -> None:
    for location, value in _strings(document, ()):
        if secrets.looks_secret(value):
            field = ".".join(map(str, location))
            raise UsageError(
                f"{path}:{_line(document, location)}: {field}: this looks like a secret value; "
                "use a reference (env:NAME, file:PATH or cmd:COMMAND) and change the exposed secret."
            )


def _strings(node: Any, location: Location) -> Iterator[tuple[Location, str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _strings(value, (*location, key))
    elif isinstance(node, str):
        yield location, node
    elif isinstance(node, Sequence):
        for index, value in enumerate(node):
            yield from _strings(value, (*location, index))


def _host(name: str, entry: Any, defaults: Mapping[str, Any], document: CommentedMap, path: Path) -> HostConfig:
    if not isinstance(entry, CommentedMap):
        raise UsageError(f"{path}:{_line(document, ('hosts', name))}: hosts.{name}: must be a mapping.")
    embedded = entry.get("transport") == "embedded"
    usable = {key: value for key, value in defaults.items() if not (embedded and key in ("address", "jump", "sudo"))}
    try:
        return HostConfig.model_validate({**usable, **entry, "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(part for part in first["loc"] if not (isinstance(part, str) and part in ("str", "ModelPaths")))
        from_defaults = bool(location) and location[0] in defaults and location[0] not in entry
        where: Location = ("defaults", *location) if from_defaults else ("hosts", name, *location)
        message = _message(first, location)
        raise UsageError(f"{path}:{_line(document, where)}: {'.'.join(map(str, where))}: {message}.") from error


def _message(error: Any, location: Location) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key" + _hint(str(location[-1]), _known_keys(location[:-1]))
    text = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]


def _known_keys(location: Location) -> Sequence[str]:
    model: type[BaseModel] | None = HostConfig
    for part in location:
        annotation = model.model_fields[str(part)].annotation if model and str(part) in model.model_fields else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return tuple(model.model_fields) if model else ()


def _hint(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _groups(document: CommentedMap, hosts: Mapping[str, HostConfig], path: Path) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for name, members in (document.get("groups") or {}).items():
        if not isinstance(members, CommentedSeq):
            raise UsageError(f"{path}:{_line(document, ('groups', name))}: groups.{name}: must be a list of hosts.")
        for index, member in enumerate(members):
            if member not in hosts:
                line = _line(document, ("groups", name, index))
                raise UsageError(
                    f"{path}:{line}: groups.{name}: unknown host {member!r}{_hint(str(member), tuple(hosts))}."
                )
        groups[str(name)] = tuple(str(member) for member in members)
    return groups


def _line(document: Any, location: Location) -> int:
    """The 1-based line of the deepest part of `location` that stands in the file."""
    line, node = 1, document
    for part in location:
        try:
            if isinstance(node, CommentedMap):
                line = node.lc.key(part)[0] + 1
            elif isinstance(node, CommentedSeq):
                line = node.lc.item(part)[0] + 1
            else:
                break
            node = node[part]
        except (KeyError, IndexError, TypeError, AttributeError):
            break
    return line
