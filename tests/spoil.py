"""JSON documents with one thing in them that should not be there."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

WORDS = (
    "",
    "\x00",
    "\x1b[2J\x1b]0;x\x07",
    "\ud800",
    "9" * 500,
    "-1",
    "nan",
    "1e999",
    "[N/A]",
    "{",
    ",,,",
    "\n\n",
    "\u202e",
)
ODD = (None, True, 0, -1, 10**400, 1e308, [], {}, [None], "x")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def spoilt(document: Any, chance: random.Random) -> Any:
    """A copy with one text cut or filled with something odd, or one thing replaced; an empty document as it is."""
    document = copy.deepcopy(document)
    found = list(places(document))
    if not found:
        return document
    *way, last = chance.choice(found)
    place = document
    for key in way:
        place = place[key]
    old = place[last]
    if isinstance(old, str) and chance.random() < 0.8:
        cut = chance.randrange(len(old) + 1)
        place[last] = chance.choice((old[:cut], old[:cut] + chance.choice(WORDS) + old[cut:], chance.choice(WORDS)))
    else:
        place[last] = chance.choice(ODD)
    return document
