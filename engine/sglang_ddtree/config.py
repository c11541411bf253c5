"""Everything that shapes a DDTREE run: widths from SGLang's arguments, expert knobs from SGLANG_DDTREE_*."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .widths import Fixed, Policy, Width, parse_policy, parse_widths

MAX_NODES = 1024
DEFAULT_TOPK = 32


@dataclass(frozen=True)
class DDTreeConfig:
    """block: the drafter's block, so trees have depth block - 1 at most.  width: T verify rows per request of the
    widest tree.

    topk: candidates per position.  spine_depth: how much of the linear chain is always in the tree (0: the
    paper's tree).  off_spine_penalty: nats taken from children of nodes off the chain.  state_free: hybrids
    verify without a recurrent state per node and commit by replay.  trace: JSONL file, bounded to
    trace_bytes.  prefix: which kernel reads the committed prefix in a verify pass on a GPU.  widths: what a step can have, narrowest first; start: how they are chosen at first (None: adaptively).
    """

    block: int
    width: int
    topk: int
    spine_depth: int = 0
    off_spine_penalty: float = 0.0
    state_free: bool = True
    trace: str | None = None
    trace_bytes: int = 64 << 20
    prefix: str = "auto"
    widths: tuple[Width, ...] = ()
    start: Policy | None = None

    @property
    def nodes(self) -> int:
        """B, the non-root nodes of a tree."""
        return self.width - 1

    @property
    def max_depth(self) -> int:
        return self.block - 1

    @classmethod
    def read(cls, block: int, width: int, env: Mapping[str, str] = os.environ) -> DDTreeConfig:
        """The configuration for these widths; ValueError names the variable that is wrong."""
        if not 2 <= block <= width <= MAX_NODES + 1:
            raise ValueError(
                f"DDTREE needs 2 <= block <= --speculative-num-draft-tokens <= {MAX_NODES + 1}, got block {block} "
                f"and {width}: give the block of the draft model or more."
            )
        nodes = width - 1
        spine = _integer(env, "SGLANG_DDTREE_SPINE", 0, 0, block - 1)
        listed = env.get("SGLANG_DDTREE_WIDTHS", "").strip()
        widths = parse_widths(listed, block, spine, MAX_NODES) if listed else (Width(str(nodes), nodes, spine),)
        if widths[-1].nodes != nodes:
            raise ValueError(
                f"The widest of SGLANG_DDTREE_WIDTHS has {widths[-1].nodes} nodes and --speculative-num-draft-tokens "
                f"is {width}: make it {widths[-1].rows}, or leave it out."
            )
        policy = env.get("SGLANG_DDTREE_WIDTH", "").strip()
        return cls(
            block=block,
            width=width,
            widths=widths,
            start=parse_policy(policy, widths) if policy else Fixed(widths[-1]),
            topk=_integer(env, "SGLANG_DDTREE_TOPK", min(nodes, DEFAULT_TOPK), 1, 4096),
            spine_depth=spine,
            off_spine_penalty=_number(env, "SGLANG_DDTREE_OFF_SPINE", 0.0),
            state_free=_integer(env, "SGLANG_DDTREE_STATE_FREE", 1, 0, 1) == 1,
            trace=env.get("SGLANG_DDTREE_TRACE") or None,
            prefix=_choice(env, "SGLANG_DDTREE_PREFIX", ("auto", "own", "fa3")),
            trace_bytes=_integer(env, "SGLANG_DDTREE_TRACE_MB", 64, 1, 1 << 20) << 20,
        )


def default_width(block: int, env: Mapping[str, str] = os.environ) -> int:
    """T where no argument gives it: that of the widest width asked for, else twice the block."""
    listed = env.get("SGLANG_DDTREE_WIDTHS", "").strip()
    return parse_widths(listed, block, 0, MAX_NODES)[-1].rows if listed else 2 * block


def _choice(env: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """One of some words; the first is the default."""
    value = env.get(name) or known[0]
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    return value


def _integer(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, "")
    try:
        value = int(text) if text else default
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {text!r}.")
    return value


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number >= 0, got {text!r}.")
    return value
