"""The widths one server holds, and which of them is in force for a batch.

A width is a node budget, or the *chain*: the block's linear chain and nothing else, which is what linear DFLASH verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CHAIN, AUTO = "chain", "auto"
# How a width travels in SGLang's control message, whose values are numbers: a node budget, or one of these.
AS_STARTED, CHAIN_CODE, AUTO_CODE = 0, -1, -2


@dataclass(frozen=True)
class Width:
    """label: "chain" or the number of nodes.  nodes: B.  spine: how much of the chain is in the tree in any case."""

    label: str
    nodes: int
    spine: int

    @property
    def rows(self) -> int:
        """T, the verify rows per request."""
        return self.nodes + 1

    @property
    def is_chain(self) -> bool:
        return self.label == CHAIN


def parse_widths(text: str, block: int, spine: int, most: int) -> tuple[Width, ...]:
    """``chain,15,32`` -> widths, narrowest first; ValueError in one sentence for what can't be one."""
    found: dict[str, Width] = {}
    for part in (p.strip() for p in text.split(",")):
        if part == CHAIN:
            found[part] = Width(CHAIN, block - 1, block - 1)
            continue
        if not part.isdecimal() or not block - 1 <= int(part) <= most:
            raise ValueError(
                f"SGLANG_DDTREE_WIDTHS takes chain and node budgets from {block - 1} (the block without its root) to "
                f"{most}, separated by commas, got {part!r}."
            )
        found[str(int(part))] = Width(str(int(part)), int(part), spine)
    return tuple(sorted(found.values(), key=lambda width: (width.nodes, not width.is_chain)))


class Policy(Protocol):
    """Chooses the width of a decode step."""

    name: str

    def choose(self, batch_size: int) -> Width: ...


@dataclass(frozen=True)
class Fixed:
    """One width for every batch."""

    width: Width

    @property
    def name(self) -> str:
        return self.width.label

    def choose(self, batch_size: int) -> Width:
        return self.width


@dataclass(frozen=True)
class Table:
    """A width per batch size: the entry with the greatest size that is not above the batch's; sizes start at 1."""

    entries: tuple[tuple[int, Width], ...]

    @property
    def name(self) -> str:
        return ",".join(f"{size}:{width.label}" for size, width in self.entries)

    def choose(self, batch_size: int) -> Width:
        return [width for size, width in self.entries if size <= max(batch_size, 1)][-1]


def parse_policy(text: str, widths: Sequence[Width]) -> Policy | None:
    """A label, or a table like ``1:64,4:32,16:chain`` -> a policy; None for ``auto``; ValueError in one sentence."""
    if text == AUTO:
        if not widths[0].is_chain or len(widths) < 2:
            raise ValueError("SGLANG_DDTREE_WIDTH=auto needs SGLANG_DDTREE_WIDTHS with chain and a node budget in it.")
        return None
    known = {width.label: width for width in widths}
    parts = [part.strip() for part in text.split(",")]
    try:
        if parts == [text.strip()] and ":" not in text:
            return Fixed(known[text.strip()])
        pairs = [part.split(":") for part in parts]
        entries = {int(size): known[label.strip()] for size, label in pairs}
        if min(entries) != 1 or len(entries) != len(parts):
            raise ValueError
    except (KeyError, ValueError):
        raise ValueError(
            f"SGLANG_DDTREE_WIDTH takes auto, one of {', '.join(known)}, or a table from batch size 1 on like "
            f"1:{widths[-1].label},8:{widths[0].label}, got {text!r}."
        ) from None
    return Table(tuple(sorted(entries.items())))


class WidthControl:
    """The policy in force, and the width of the running step; everything here happens on the scheduler's thread,
    between steps."""

    def __init__(self, widths: Sequence[Width], start: Policy, auto: Policy | None = None) -> None:
        """auto: the adaptive policy, None where the server holds no chain to fall back to."""
        self.widths, self.start, self.auto = tuple(widths), start, auto
        self.policy = start
        self.current = start.choose(1)
        self.switches = 0

    def choose(self, batch_size: int) -> Width:
        """The width of the next step."""
        self._put(self.policy.choose(batch_size))
        return self.current

    def _put(self, width: Width) -> None:
        self.switches += width != self.current
        self.current = width

    def index(self, width: Width) -> int:
        return self.widths.index(width)

    def switch(self, code: int) -> None:
        """Follow a control message from the next step on; ValueError for a width this server does not hold."""
        by_code = {CHAIN_CODE if w.is_chain else w.nodes: Fixed(w) for w in self.widths}
        policies: dict[int, Policy | None] = {AS_STARTED: self.start, AUTO_CODE: self.auto, **by_code}
        policy = policies.get(code)
        if policy is None:
            raise ValueError(f"This server holds the widths {', '.join(w.label for w in self.widths)}, not {code}.")
        self.policy = policy
        if isinstance(policy, Fixed):
            self._put(policy.width)

    def state(self) -> dict[str, object]:
        return {
            "policy": self.policy.name,
            "width": self.current.label,
            "nodes": self.current.nodes,
            "widths": [width.label for width in self.widths],
            "auto": self.auto is not None,
            "switches": self.switches,
        }


def code_of(width: str | int) -> int:
    """A width as asked for (``chain``, ``auto``, ``start`` or a node budget) -> its code; ValueError otherwise."""
    named = {CHAIN: CHAIN_CODE, AUTO: AUTO_CODE, "start": AS_STARTED}
    if isinstance(width, str) and width in named:
        return named[width]
    if isinstance(width, bool) or not str(width).isdecimal() or int(width) < 1:
        raise ValueError(f"width must be chain, auto, start or a node budget, got {width!r}.")
    return int(width)
