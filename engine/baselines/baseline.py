"""The baseline file: what a pair accepts on a set of prompts, with the identity of everything that produced it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from .errors import BaselineError

FORMAT = "ddtree-baseline"
VERSION = 1
REPETITIVE_BELOW = 0.6
GRAM = 6


@dataclass
class AnchorData:
    """Per anchor (index of the newest verified greedy token): what every tree would accept there.

    ``entered[j][d]``: the budget from which the tree holds the d-th token behind anchor j; ``scores`` their
    summed log-probabilities; ``chain[j]``: tokens a chain step yields (confirmed proposals + 1);
    ``chain_slack``: the smallest gap that decided it; ``cutoffs[budget][j]``: the tree's lowest score.
    ``missed[j]``: the score of the first token that no tree holds; ``edges[j][d]``: by how much the d-th token is among
    the k candidates of its position, the missed one included. Both are empty in older files.
    """

    entered: list[list[int]]
    scores: list[list[float]]
    chain: list[int]
    chain_slack: list[float]
    cutoffs: dict[str, list[float]]
    missed: list[float | None] = field(default_factory=list)
    edges: list[list[float]] = field(default_factory=list)

    def tokens(self, mode: str, anchor: int) -> int:
        """Tokens that one step at ``anchor`` yields: accepted nodes + 1."""
        if mode == "chain":
            return self.chain[anchor]
        return 1 + sum(number <= int(mode) for number in self.entered[anchor])

    def steps(self, mode: str, new_tokens: int) -> list[int]:
        """Tokens per step when every step starts where this mode's last one ended."""
        anchor, out = 0, []
        while anchor + 1 < new_tokens:
            out.append(self.tokens(mode, anchor))
            anchor += out[-1]
        return out


@dataclass
class PromptRecord:
    """One prompt. ``accept[mode]``: tokens per step; ``margins``: target's top-1 minus top-2 logit per token."""

    id: str
    category: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    greedy_ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    accept: dict[str, list[int]] = field(default_factory=dict)
    anchors: AnchorData | None = None

    @property
    def distinct_grams(self) -> float:
        """Share of different 6-grams in the text: near 0 for a loop."""
        grams = [tuple(self.greedy_ids[i : i + GRAM]) for i in range(len(self.greedy_ids) - GRAM + 1)]
        return len(set(grams)) / len(grams) if grams else 1.0

    @property
    def repetitive(self) -> bool:
        return self.distinct_grams < REPETITIVE_BELOW

    def steps(self, mode: str, new_tokens: int) -> list[int]:
        """Tokens per step of the first ``new_tokens`` tokens, from the anchors or else from the recorded steps."""
        if self.anchors is not None:
            return self.anchors.steps(mode, new_tokens)
        reached = accumulate(self.accept[mode], initial=1)
        return [n for n, before in zip(self.accept[mode], reached, strict=False) if before < new_tokens]


@dataclass
class Baseline:
    """``target``, ``draft``, ``tokenizer``: {"name", "sha256"}; ``policy``: {"k", "spine_depth", "off_spine_penalty"}."""

    target: dict[str, str]
    draft: dict[str, str]
    tokenizer: dict[str, str]
    policy: dict[str, float]
    block_size: int
    new_tokens: int
    budgets: list[int]
    prompts: list[PromptRecord]
    made_with: dict[str, Any] = field(default_factory=dict)

    @property
    def modes(self) -> list[str]:
        return ["chain", *map(str, self.budgets)]

    def prompt(self, prompt_id: str) -> PromptRecord:
        for record in self.prompts:
            if record.id == prompt_id:
                return record
        raise BaselineError(f"The baseline has no prompt {prompt_id!r}: it was made with another prompt set.")

    def require_models(self, target: str | None = None, draft: str | None = None, tokenizer: str | None = None) -> None:
        """Refuse hashes that differ from the baseline's; parts without a hash on either side pass."""
        for name, ours, theirs in (
            ("target", self.target, target),
            ("draft", self.draft, draft),
            ("tokenizer", self.tokenizer, tokenizer),
        ):
            wanted = ours.get("sha256")
            if wanted and theirs and wanted != theirs:
                raise BaselineError(
                    f"The baseline was made with another {name} (sha256 {wanted[:12]}, here {theirs[:12]}): "
                    f"make one for this {name} with 'python -m baselines oracle'."
                )

    def shortened(self, new_tokens: int) -> Baseline:
        """The baseline of the first ``new_tokens`` generated tokens; itself when it is not longer."""
        if new_tokens >= self.new_tokens:
            return self
        records = [
            replace(record, accept={mode: record.steps(mode, new_tokens) for mode in record.accept})
            for record in self.prompts
        ]
        return replace(self, new_tokens=new_tokens, prompts=records)

    def summary(self) -> dict[str, Any]:
        """Tokens per step by mode: all prompts, repetitive and other ones apart, and by category."""
        categories = sorted({record.category for record in self.prompts})
        return {
            "all": self._rates(self.prompts),
            "non_repetitive": self._rates([r for r in self.prompts if not r.repetitive]),
            "repetitive": self._rates([r for r in self.prompts if r.repetitive]),
            "by_category": {c: self._rates([r for r in self.prompts if r.category == c]) for c in categories},
        }

    def _rates(self, records: Iterable[PromptRecord]) -> dict[str, Any]:
        chosen = list(records)
        rates: dict[str, float] = {}
        for mode in self.modes:
            steps = [n for record in chosen for n in record.accept.get(mode, [])]
            if steps:
                rates[mode] = round(sum(steps) / len(steps), 4)
        chain = rates.get("chain")
        # A tree pays while its step costs less than this many chain steps.
        break_even = {mode: round(rate / chain, 4) for mode, rate in rates.items()} if chain else {}
        return {"prompts": len(chosen), "tokens_per_step": rates, "break_even_step_cost": break_even}

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        document = {"format": FORMAT, "version": VERSION} | asdict(self) | {"summary": self.summary()}
        for record, raw in zip(self.prompts, document["prompts"], strict=True):
            raw["distinct_6grams"] = round(record.distinct_grams, 3)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(path)


def record_from_json(raw: dict[str, Any]) -> PromptRecord:
    """Inverse of ``asdict``; unknown keys are ignored, so that later versions can add some."""
    anchors = raw.get("anchors")
    return PromptRecord(
        id=str(raw["id"]),
        category=raw.get("category", ""),
        prompt_ids=raw.get("prompt_ids", []),
        greedy_ids=raw.get("greedy_ids", []),
        margins=raw.get("margins", []),
        accept={mode: list(map(int, steps)) for mode, steps in raw["accept"].items()},
        anchors=AnchorData(**anchors) if anchors else None,
    )


def load_baseline(path: Path) -> Baseline:
    """Read and check a baseline file; every defect is one sentence."""
    document = read_json(path, "make it again with 'python -m baselines oracle'")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BaselineError(f"{path} is no baseline of this tool: import it first with 'python -m baselines import'.")
    if document.get("version") != VERSION:
        raise BaselineError(
            f"{path} has version {document.get('version')}, this tool reads {VERSION}: update the tool."
        )
    return _build(
        path,
        lambda: Baseline(
            target=document["target"],
            draft=document["draft"],
            tokenizer=document["tokenizer"],
            policy=document["policy"],
            block_size=document["block_size"],
            new_tokens=document["new_tokens"],
            budgets=document["budgets"],
            prompts=[record_from_json(raw) for raw in document["prompts"]],
            made_with=document.get("made_with", {}),
        ),
    )


def _build(path: Path, make: Callable[[], Baseline]) -> Baseline:
    try:
        baseline = make()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BaselineError(
            f"{path} is damaged ({error!r}): make it again with 'python -m baselines oracle'."
        ) from error
    if not baseline.prompts:
        raise BaselineError(f"{path} holds no prompts: make it again with a prompt set that has some.")
    return baseline


def read_json(path: Path, advice: str) -> Any:
    """Parse a JSON file; truncated, missing and binary files are one sentence each, ending in ``advice``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BaselineError(f"{path} does not exist: {advice}.") from error
    except (UnicodeDecodeError, OSError) as error:
        raise BaselineError(f"{path} cannot be read as text ({error}): {advice}.") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise BaselineError(f"{path} is cut off or damaged at {where} ({error.msg}): {advice}.") from error
