"""Which offline baselines there are on this machine, and which one fits a served pair and its tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.bench.prompts import Prompt
from orchestrator.errors import UsageError
from orchestrator.release import wheels
from tasks import host_tools

FORMAT = "ddtree-baseline"
FOLDER = "baselines"  # beside hosts.yaml
ENGINE_TOPK = 32  # the plugin's default of SGLANG_DDTREE_TOPK


@dataclass(frozen=True)
class KnownBaseline:
    """One file. `prompts`: (id, token ids) of those that can be sent to an engine; `policy` {} means unknown."""

    path: Path
    target: str | None
    draft: str | None
    new_tokens: int
    budgets: tuple[int, ...]
    policy: Mapping[str, float]
    prompts: tuple[tuple[str, tuple[int, ...]], ...]
    has_chain: bool = True

    def requests(self, count: int) -> list[Prompt]:
        """The first prompts, as token ids; their ids are those of the baseline."""
        return [Prompt(id=name, category="baseline", input_ids=ids) for name, ids in self.prompts[:count]]

    def why_not(self, nodes: int, policy: Mapping[str, float]) -> str | None:
        """Why it can't judge a tree of `nodes` nodes built with `policy`; None when it can."""
        if nodes not in self.budgets:
            return f"{self.path.name} has no budget of {nodes} nodes"
        if not self.prompts:
            return f"{self.path.name} holds no prompt's token ids"
        if not self.policy:
            return None
        for name, value in policy.items():
            ours = self.policy.get(name, value)
            if (min(ours, nodes) != min(value, nodes)) if name == "k" else ours != value:
                return f"{self.path.name} was made with {name} {ours:g}, the engine has {value:g}"
        return None


def files(home: Path) -> list[Path]:
    """The user's own baselines first, then those of the shipped pairs."""
    shipped = wheels.engine_folder() / "baselines" / "data"
    return [*own_files(home), *sorted(shipped.glob("*.json"))]


def own_files(home: Path) -> list[Path]:
    return sorted((home / FOLDER).glob("*.json"))


def require_whole(home: Path) -> None:
    """UsageError for the first of the user's own baselines that the parity check could not use, read as it will read it."""
    for path in own_files(home):
        read(path)
        host_tools.run_here(["show", str(path)])


def fingerprint(home: Path) -> str:
    """Changes whenever a baseline is added, removed or altered."""
    hasher = hashlib.sha256()
    for path in files(home):
        hasher.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()[:16]


def read(path: Path) -> KnownBaseline:
    """Read what choosing needs; UsageError, with the file's name, for anything that is no whole baseline."""
    advice = "make it again with `orchestrate bench --oracle`, or move it away"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is cut off or damaged ({error}); {advice}.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(
            f"{path} is no baseline of this tool; import it with `python -m baselines import`, or move it away."
        )
    try:
        return _known(path, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error!r}); {advice}.") from error


def _known(path: Path, document: Mapping[str, Any]) -> KnownBaseline:
    prompts = tuple(
        (str(p["id"]), tuple(map(int, p["prompt_ids"]))) for p in document["prompts"] if p.get("prompt_ids")
    )
    return KnownBaseline(
        path=path,
        target=document["target"].get("sha256"),
        draft=document["draft"].get("sha256"),
        new_tokens=int(document["new_tokens"]),
        budgets=tuple(map(int, document["budgets"])),
        policy=dict(document["policy"]),
        prompts=prompts,
        has_chain=all("chain" in prompt["accept"] for prompt in document["prompts"]),
    )


def engine_policy(engine: Mapping[str, Any]) -> dict[str, float]:
    """The plugin's knobs in a baseline's words, with its defaults."""
    return {
        "k": float(engine.get("topk") or ENGINE_TOPK),
        "spine_depth": float(engine.get("spine") or 0),
        "off_spine_penalty": float(engine.get("off_spine") or 0.0),
    }


def choose(
    known: list[KnownBaseline], target: str, draft: str, nodes: int, policy: Mapping[str, float]
) -> KnownBaseline | str:
    """The first baseline of this pair that can judge this tree, or the reason why there is none."""
    pair = [one for one in known if one.target == target and one.draft == draft]
    reasons = []
    for one in pair:
        reason = one.why_not(nodes, policy)
        if reason is None:
            return one
        reasons.append(reason)
    if reasons:
        return "; ".join(reasons)
    return f"none of the {len(known)} offline baselines was made with this target and draft"
