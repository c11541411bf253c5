"""What a person can set for a run (`--set name=value`, or hosts.yaml), in one place with the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.bench.prompts import load_prompts
from orchestrator.errors import UsageError
from orchestrator.graph.model import TaskContext
from orchestrator.hosts.inventory import DDTree, HostConfig

DECISIONS = ("adopt", "keep-linear")
FIRST_RUN = {"budgets": "15,32,64", "pairs": "3", "max_tokens": "64", "group_size": "2"}
GPU_RUN = {"budgets": "15,16,22,32,64,128,256,512,1024", "pairs": "10", "max_tokens": "512", "group_size": "4"}
# The CPU engine computes in float32. A bfloat16 logit between 16 and 32 has steps of 0.125: two of them are a tie.
PARITY_BOUND_CPU, PARITY_BOUND_GPU = "0.001", "0.25"

MEANINGS = {
    "nodes": "tree nodes B of the canary (default: hosts.yaml ddtree.nodes, or the first budget on the CPU engine)",
    "block": "draft tokens of the linear service that deploy-dflash makes (default: the draft's own block)",
    "bundle": "folder of an offline bundle whose wheels are installed instead of a plugin built here",
    "budgets": "node budgets of the sweep, comma-separated",
    "pairs": "paired measurements per budget",
    "max_tokens": "tokens per benchmark request",
    "group_size": "prompts per pair",
    "loads": "requests at once at which the budgets are measured, comma-separated; never above max_live_load",
    "prompts": "file with the prompts of the sweep (JSONL, or text with one a line; default: the recorded ones)",
    "against": "earlier sweep that this one must hold: a run, a release, or known-good (graph bench)",
    "tree_server": "port or unit of a tree server that was started by hand on the host: the second arm, never stopped (graph bench)",
    "margin": "least relative gain worth a change (0.02 = 2 %)",
    "decide": "override of the verdict: adopt or keep-linear, with --reason",
    "reason": "why the verdict is overridden",
    "accept_loss": "smoke checks that the tree may fail to offer although the linear service does, comma-separated",
    "parity_bound": "largest margin of a logit at which a text may part from the linear one, or a step from the offline baseline",
    "max_live_load": "concurrent requests allowed on the live service",
    "fresh_s": "age in seconds after which measurements no longer count as evidence",
    "confirm_s": "seconds in which a cut-over must be confirmed before the host goes back by itself",
}


@dataclass(frozen=True)
class Knobs:
    """The values of one run, checked."""

    nodes: int
    block: int | None
    bundle: str | None
    budgets: tuple[int, ...]
    pairs: int
    max_tokens: int
    group_size: int
    loads: tuple[int, ...]
    prompts: str | None
    against: str | None
    tree_server: str | None
    margin: float
    decide: str | None
    reason: str
    accept_loss: tuple[str, ...]
    parity_bound: float
    max_live_load: float
    fresh_s: float
    confirm_s: float
    tree: DDTree

    @property
    def engine(self) -> dict[str, Any]:
        """The plugin's own knobs; None leaves the plugin's default."""
        return {
            "topk": self.tree.topk,
            "spine": self.tree.spine_depth or None,
            "off_spine": self.tree.off_spine_penalty or None,
        }


def read_knobs(config: HostConfig, settings: Mapping[str, str]) -> Knobs:
    """Check the settings of a run; UsageError names the first wrong one."""
    unknown = [name for name in settings if name not in MEANINGS]
    if unknown:
        raise UsageError(f"--set {unknown[0]}: there is no such setting; known are {', '.join(MEANINGS)}.")
    cpu = config.engine == "sglang-cpu"
    values = {**(FIRST_RUN if cpu else GPU_RUN), **settings}
    budgets = tuple(sorted({_whole("budgets", part, 1, 1024) for part in values["budgets"].split(",")}))
    decide = values.get("decide")
    if decide is not None and decide not in DECISIONS:
        raise UsageError(f"--set decide={decide}: choose adopt or keep-linear.")
    if decide is not None and not values.get("reason", "").strip():
        raise UsageError("--set decide overrides a measurement; say why with --reason TEXT.")
    max_live_load = _number("max_live_load", values.get("max_live_load", "1"), 0.0, 1e6)
    loads = tuple(sorted({_whole("loads", part, 1, 1024) for part in values.get("loads", "1").split(",")}))
    if loads[-1] > max(1.0, max_live_load):
        raise UsageError(
            f"--set loads={values['loads']}: {loads[-1]} requests at once may reach the live service; "
            f"--max-live-load {loads[-1]} allows that."
        )
    if values.get("prompts"):
        load_prompts(Path(values["prompts"]))
    default_nodes = str(budgets[0] if cpu else config.ddtree.nodes)
    return Knobs(
        nodes=_whole("nodes", values.get("nodes", default_nodes), 1, 1024),
        block=_whole("block", values["block"], 2, 64) if "block" in values else None,
        bundle=values.get("bundle"),
        budgets=budgets,
        pairs=_whole("pairs", values["pairs"], 1, 1000),
        max_tokens=_whole("max_tokens", values["max_tokens"], 8, 32768),
        group_size=_whole("group_size", values["group_size"], 1, 256),
        loads=loads,
        prompts=values.get("prompts") or None,
        against=values.get("against") or None,
        tree_server=values.get("tree_server") or None,
        margin=_number("margin", values.get("margin", "0.02"), 0.0, 1.0),
        decide=decide,
        reason=values.get("reason", "").strip(),
        accept_loss=tuple(part.strip() for part in values.get("accept_loss", "").split(",") if part.strip()),
        parity_bound=_number(
            "parity_bound", values.get("parity_bound", PARITY_BOUND_CPU if cpu else PARITY_BOUND_GPU), 0.0, 100.0
        ),
        max_live_load=max_live_load,
        fresh_s=_number("fresh_s", values.get("fresh_s", "86400"), 0.0, 1e9),
        confirm_s=_number("confirm_s", values.get("confirm_s", "120" if cpu else "900"), 5.0, 86400.0),
        tree=config.ddtree,
    )


def knobs_of(ctx: TaskContext) -> Knobs:
    return read_knobs(ctx.host.config, ctx.settings)


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise UsageError(f"--set {name}={text}: must be a whole number from {low} to {high}.")
    return value


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise UsageError(f"--set {name}={text}: must be a number from {low:g} to {high:g}.")
    return value
