"""Options of SGLang over its versions, and the translation of a command line from one version to another."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from tasks.inspecting.sglang_options import Option

TABLE = Path(__file__).with_name("data") / "sglang_options.json"
# Renames that only a warning or help text announced, in no form that the readers understand.
KNOWN_RENAMES = {
    "--elastic-ep-rejoin": "--elastic-ep-join-mode=recover",
    "--keep-mm-feature-on-device": "--mm-feature-transport=cuda_ipc",
}
# Options whose loss changes nothing but a log or a metric.
DROPPABLE = frozenset(
    {"--collect-tokens-histogram", "--prefill-round-robin-balance", "--enable-expert-distribution-metrics"}
)


class UnknownOption(UsageError):
    """An option of the command line has no counterpart in the version it is to run with."""


@dataclass(frozen=True)
class Step:
    """What happened to one option: kept, renamed or dropped."""

    option: str
    kind: str
    became: str = ""
    why: str = ""


@dataclass(frozen=True)
class Translation:
    """A command line for another version and every change that was made to it."""

    argv: tuple[str, ...]
    steps: tuple[Step, ...] = field(default_factory=tuple)

    @property
    def changes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind != "kept")


@cache
def history() -> dict[str, Any]:
    """The generated table: {"versions": [...], "options": {name: [{"from", "to", "field", "takes", ...}]}}."""
    loaded: dict[str, Any] = json.loads(TABLE.read_text())
    return loaded


def versions() -> list[str]:
    return list(history()["versions"])


def version_key(version: str) -> tuple[int, ...]:
    """Order of release numbers; post1 comes after its base, local parts are ignored."""
    main, _, post = version.split("+")[0].partition(".post")
    numbers = [int(n) for n in re.findall(r"\d+", main)[:3]]
    return (*numbers, *(0 for _ in range(3 - len(numbers))), int(post) if post.isdigit() else 0)


def nearest_version(version: str) -> str:
    """The newest tabled version that is not newer than this one (the oldest one for anything older)."""
    known = versions()
    not_newer = [v for v in known if version_key(v) <= version_key(version)]
    return not_newer[-1] if not_newer else known[0]


def options_of(version: str) -> dict[str, Option]:
    """The options of a tabled version (of the nearest older one for others)."""
    order = {name: i for i, name in enumerate(versions())}
    position = order[nearest_version(version)]
    found = {}
    for name, spans in history()["options"].items():
        for span in spans:
            if order[span["from"]] <= position <= order[span["to"]]:
                found[name] = Option(
                    names=(name,),
                    field=span["field"],
                    takes=span["takes"],
                    deprecated=span.get("deprecated", False),
                    replaced_by=span.get("replaced_by"),
                    stops=span.get("stops", False),
                )
    return found


def translate(
    command_line: Sequence[str],
    from_version: str,
    to_version: str,
    *,
    source: Mapping[str, Option] | None = None,
    target: Mapping[str, Option] | None = None,
) -> Translation:
    """The same launch options for another version.

    command_line holds options and their values only (no interpreter, no module name); options read from the
    packages themselves may replace the table. Raises UnknownOption, which names the option and the new name.
    """
    old = source or options_of(from_version)
    new = target or options_of(to_version)
    argv: list[str] = []
    steps: list[Step] = []
    for name, values, joined in split_options(command_line, old):
        if not name:
            argv += values
            continue
        step, words = _carry(name, values, joined, old, new, to_version)
        steps.append(step)
        argv += words
    return Translation(tuple(argv), tuple(steps))


def split_options(argv: Sequence[str], known: Mapping[str, Option]) -> list[tuple[str, list[str], bool]]:
    """(option, values, whether written as --option=value) for each; name '' for words that belong to none."""
    result: list[tuple[str, list[str], bool]] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or _is_number(word):
            result.append(("", [word], False))
            continue
        written, equals, value = word.partition("=")
        name = resolve_name(written, known)
        takes = known[name].takes if name in known else ""
        if equals:
            result.append((name, [value], True))
            continue
        values: list[str] = []
        limit = {"flag": 0, "none": 0, "value": 1, "optional": 1}.get(takes, len(rest))
        while rest and len(values) < limit and (not rest[0].startswith("-") or _is_number(rest[0])):
            values.append(rest.pop(0))
        result.append((name, values, False))
    return result


def resolve_name(written: str, known: Mapping[str, Option]) -> str:
    """The full name of an option, which argparse lets users shorten while it stays unique."""
    if written in known or not written.startswith("--"):
        return written
    matches = sorted({name for name in known if name.startswith(written)})
    return matches[0] if len(matches) == 1 else written


def unknown_options(argv: Sequence[str], version: str, known: Mapping[str, Option] | None = None) -> list[Step]:
    """Options of a command line that the version does not know or only knows as deprecated, with the new name."""
    options = known or options_of(version)
    found = []
    for name, _, _ in split_options(argv, options):
        option = options.get(name)
        if name and option is None:
            new = replacement(name, options)
            found.append(Step(name, "unknown", new or "", f"sglang {version} has no {name}"))
        elif option is not None and option.deprecated:
            found.append(Step(name, "deprecated", option.replaced_by or "", f"deprecated in sglang {version}"))
    return found


def replacement(name: str, new: Mapping[str, Option]) -> str | None:
    """What to write instead of an option that `new` does not know; None when nothing is known."""
    seen = {name}
    while True:
        follow = KNOWN_RENAMES.get(name) or _announced(name) or _same_field(name, new)
        if follow is None or follow in seen:
            return None
        words = expand(follow)
        if words and all(word.split("=")[0] in new for word in words):
            return follow
        seen.add(follow)
        name = words[0].split("=")[0] if words else follow


def expand(replaced_by: str) -> list[str]:
    """`--x-{a,b}=v` as the two words it stands for; [] when the text names no usable option."""
    text = replaced_by.strip().split(" ")[0].rstrip(".,")
    if not text.startswith("--"):
        return []
    match = re.match(r"^(.*)\{(.+?)\}(.*)$", text)
    return [match[1] + part + match[3] for part in match[2].split(",")] if match else [text]


def _carry(
    name: str,
    values: list[str],
    joined: bool,
    old: Mapping[str, Option],
    new: Mapping[str, Option],
    to_version: str,
) -> tuple[Step, list[str]]:
    here = new.get(name)
    words = [f"{name}={values[0]}"] if joined else [name, *values]
    if here is not None and not here.deprecated:
        return Step(name, "kept"), words
    target = (here.replaced_by if here is not None else None) or replacement(name, new)
    # Some releases announce no name but a sentence, which begins with the option itself.
    options = [word for word in expand(target or "") if word.split("=")[0] != name]
    if target is None or (not options and name in DROPPABLE):
        if name in DROPPABLE or (here is not None and not here.stops):
            return Step(name, "dropped", why=f"has no effect in sglang {to_version}"), []
        reason = f"sglang {to_version} has no option {name} and none that replaces it"
        raise UnknownOption(
            f"{reason}; remove it from the service's arguments or keep the version that it was written for"
        )
    if not options:
        raise UnknownOption(f"sglang {to_version} refuses {name}: {target}")
    result: list[str] = []
    for option in options:
        if "=" in option or new[option].takes == "flag" or not values:
            result.append(option)
        else:
            result += [f"{option}={values[0]}"] if joined else [option, *values]
    return Step(name, "renamed", " ".join(options), f"renamed by sglang {to_version}"), result


def _announced(name: str) -> str | None:
    """The new name that the last release which knew the option announced."""
    spans = history()["options"].get(name, [])
    return next((span["replaced_by"] for span in reversed(spans) if span.get("replaced_by")), None)


def _same_field(name: str, new: Mapping[str, Option]) -> str | None:
    """A current option that fills the same field as any release let this one fill."""
    fields = {span["field"] for span in history()["options"].get(name, [])}
    found = sorted(n for n, option in new.items() if option.field in fields and not option.deprecated and n != name)
    return found[0] if found else None


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None
