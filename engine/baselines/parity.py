"""Does an engine accept what the baseline says it must, step by step?

A difference is explained when a decision behind it was a near-tie: the target's (its top two logits within
``Bounds.target``) or the draft's (a node within ``Bounds.draft`` of the tree's lowest score). Everything else
is a fault: lost acceptance, or acceptance that no correct verify could give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .baseline import Baseline, PromptRecord
from .errors import BaselineError


@dataclass(frozen=True)
class Bounds:
    """Largest gaps that count as ties: target in logits, draft in summed log-probability. Float32 engines: 1e-3."""

    target: float = 1e-3
    draft: float = 2e-3

    @classmethod
    def of(cls, target: float) -> Bounds:
        """Twice as much for the draft: a node's score is a sum over up to 15 proposals."""
        return cls(target, 2 * target)


@dataclass(frozen=True)
class Difference:
    """One disagreement; ``anchor`` counts generated tokens, ``depth`` the node below the root that decided it."""

    prompt: str
    step: int
    anchor: int
    expected: int
    found: int
    depth: int
    token: int | None
    target_margin: float | None
    draft_gap: float | None
    explained: bool
    message: str


@dataclass
class ParityReport:
    """``ok`` when nothing is unexplained; ``steps`` counts the compared ones."""

    mode: str
    prompts: int = 0
    steps: int = 0
    engine_tokens_per_step: float = 0.0
    baseline_tokens_per_step: float = 0.0
    differences: list[Difference] = field(default_factory=list)

    @property
    def faults(self) -> list[Difference]:
        return [d for d in self.differences if not d.explained]

    @property
    def ok(self) -> bool:
        return self.steps > 0 and not self.faults

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "error": self.faults[0].message if self.faults else None} | asdict(self)

    def text(self) -> str:
        """Verdict, then one line per difference."""
        verdict = "equal" if not self.differences else "explained" if self.ok else "FAULT"
        head = (
            f"{verdict}: {self.prompts} prompts, {self.steps} steps of {self.mode}, "
            f"{self.engine_tokens_per_step:.4f} tokens/step (baseline {self.baseline_tokens_per_step:.4f})"
        )
        return "\n".join([head, *(d.message for d in self.differences)])


def load_trace(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Steps per request id, in order; a last line cut off by a crash is dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(
            f"{path} cannot be read ({error}): set SGLANG_DDTREE_TRACE and run the prompts again."
        ) from error
    requests: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise BaselineError(f"{path} line {number} is not JSON: run the prompts again for a new trace.") from error
        if not isinstance(record, dict) or record.get("trace_full"):
            continue
        if not {"rid", "step", "accepted"} <= record.keys():
            raise BaselineError(f"{path} line {number} is no trace of the engine: it needs rid, step and accepted.")
        requests.setdefault(str(record["rid"]), []).append(record)
    if not requests:
        raise BaselineError(f"{path} holds no steps: the engine served nothing while it was traced.")
    return requests


def check_trace(
    baseline: Baseline,
    trace: Mapping[str, Sequence[Mapping[str, Any]]],
    mode: str,
    bounds: Bounds = Bounds(),
    outputs: Mapping[str, Sequence[int]] | None = None,
    rids: Mapping[str, str] | None = None,
) -> ParityReport:
    """Compare every traced request; ``rids`` maps request ids to prompts, ``outputs`` gives generated ids."""
    _require_mode(baseline, mode)
    report = ParityReport(mode)
    tokens = 0
    wanted: list[int] = []
    for rid, steps in trace.items():
        record = baseline.prompt((rids or {}).get(rid, rid))
        comparison = _Comparison(record, baseline, mode, bounds, (outputs or {}).get(rid))
        report.differences += comparison.run([int(step["accepted"]) for step in steps])
        report.prompts += 1
        report.steps += comparison.compared
        tokens += comparison.tokens
        wanted += record.accept[mode]
    report.engine_tokens_per_step = round(tokens / max(1, report.steps), 4)
    report.baseline_tokens_per_step = round(sum(wanted) / max(1, len(wanted)), 4)
    return report


def check_counts(
    baseline: Baseline,
    counts: Mapping[str, Any],
    mode: str = "chain",
    bounds: Bounds = Bounds(),
    outputs: Mapping[str, Sequence[int]] | None = None,
) -> ParityReport:
    """Compare verify counts, for engines without a trace; ``outputs`` gives generated ids by prompt.

    A count is a number or {"verify_ct": n, "histogram": [requests' steps that confirmed 0, 1, ... proposals]}.
    A prompt whose text leaves the baseline's is judged by that place alone: behind it counts can't be compared.
    """
    _require_mode(baseline, mode)
    report = ParityReport(mode)
    tokens = 0
    wanted: list[int] = []
    for prompt_id, raw in counts.items():
        record = baseline.prompt(prompt_id)
        given = raw if isinstance(raw, Mapping) else {"verify_ct": raw}
        report.prompts += 1
        comparison = _Comparison(record, baseline, mode, bounds, (outputs or {}).get(prompt_id))
        if (parted := comparison.parted()) is not None:
            report.differences.append(parted)
            continue
        report.differences += _count_differences(record, given, mode, bounds)
        report.steps += int(given["verify_ct"])
        tokens += baseline.new_tokens - 1
        wanted += record.accept[mode]
    report.engine_tokens_per_step = round(tokens / max(1, report.steps), 4)
    report.baseline_tokens_per_step = round(tokens / max(1, len(wanted)), 4)
    return report


def _require_mode(baseline: Baseline, mode: str) -> None:
    if mode not in baseline.modes or any(mode not in record.accept for record in baseline.prompts):
        raise BaselineError(
            f"The baseline has no mode {mode!r} ({', '.join(baseline.modes)}): measure it with --budgets {mode}."
        )


def _count_differences(record: PromptRecord, given: Mapping[str, Any], mode: str, bounds: Bounds) -> list[Difference]:
    steps = record.accept[mode]
    problems = []
    if int(given["verify_ct"]) != len(steps):
        problems.append(f"verify count {given['verify_ct']}, baseline {len(steps)}")
    histogram = given.get("histogram")
    if histogram is not None:
        # The limit on new tokens may cut the last step, so it may count anywhere.
        ours = [0] * max(len(histogram), max(steps) + 1)
        for n in steps:
            ours[n - 1] += 1
        moved = sum(abs(a - b) for a, b in zip(ours, [*histogram, *[0] * (len(ours) - len(histogram))], strict=True))
        if moved > 2:
            problems.append(f"histogram of confirmed proposals {list(histogram)}, baseline {ours}")
    if not problems:
        return []
    target_gap = min(map(abs, record.margins), default=None)
    draft_gap = min(record.anchors.chain_slack, default=None) if record.anchors and mode == "chain" else None
    explained = _tie(target_gap, bounds.target) or _tie(draft_gap, bounds.draft)
    why = f"smallest margins: target {target_gap}, draft {draft_gap}"
    message = f"prompt {record.id}: {'; '.join(problems)} ({why})"
    return [
        Difference(
            record.id, -1, -1, len(steps), int(given["verify_ct"]), -1, None, target_gap, draft_gap, explained, message
        )
    ]


def _tie(gap: float | None, bound: float) -> bool:
    return gap is not None and abs(gap) <= bound


class _Comparison:
    """One request against one prompt of the baseline."""

    def __init__(
        self, record: PromptRecord, baseline: Baseline, mode: str, bounds: Bounds, output: Sequence[int] | None
    ) -> None:
        self.record, self.mode, self.bounds, self.output = record, mode, bounds, output
        self.new_tokens = baseline.new_tokens
        self.compared = self.tokens = 0

    def parted(self) -> Difference | None:
        """Where the text leaves the baseline's, for an engine whose single steps are unknown."""
        agreed = self._agreed_tokens()
        return self._text_difference(agreed, []) if agreed < self.new_tokens else None

    def run(self, accepted: list[int]) -> list[Difference]:
        """Follow the engine from anchor to anchor until its text leaves the baseline's."""
        found: list[Difference] = []
        agreed = self._agreed_tokens()
        anchor = 0
        for step, count in enumerate(accepted):
            if anchor + 1 >= min(agreed, self.new_tokens):
                break
            expected = self._expected(step, anchor)
            if expected is None:
                break
            self.compared += 1
            self.tokens += count
            last = anchor + max(count, expected) >= min(agreed, self.new_tokens)
            if count != expected and not (last and anchor + count >= min(agreed, self.new_tokens) - 1):
                difference = self._difference(step, anchor, expected, count)
                found.append(difference)
                if not difference.explained or self.record.anchors is None:
                    return found
                if self.output is None and _tie(difference.target_margin, self.bounds.target):
                    return found  # the texts may part here, and nothing tells
            anchor += count
        if agreed < self.new_tokens:
            found.append(self._text_difference(agreed, accepted))
        elif anchor + 1 < self.new_tokens and not found and self._expected(len(accepted), anchor) is not None:
            found.append(self._short(len(accepted), anchor))
        return found

    def _agreed_tokens(self) -> int:
        if self.output is None:
            return self.new_tokens
        pairs = zip(self.output, self.record.greedy_ids, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), self.new_tokens)

    def _expected(self, step: int, anchor: int) -> int | None:
        """Tokens of this step; a baseline without anchors (imported) knows only its own steps."""
        if self.record.anchors is not None:
            return self.record.anchors.tokens(self.mode, anchor)
        steps = self.record.accept[self.mode]
        return steps[step] if step < len(steps) and sum(steps[:step]) == anchor else None

    def _difference(self, step: int, anchor: int, expected: int, found: int) -> Difference:
        depth = min(expected, found)
        position = anchor + depth
        token = self.record.greedy_ids[position] if position < len(self.record.greedy_ids) else None
        margin = self.record.margins[position] if position < len(self.record.margins) else None
        gap = self._draft_gap(anchor, depth)
        explained = _tie(margin, self.bounds.target) or _tie(gap, self.bounds.draft)
        verb = "lost" if found < expected else "accepted, but no tree of the baseline holds it,"
        message = (
            f"prompt {self.record.id}, step {step} (generated token {anchor}): {found} tokens where the baseline has "
            f"{expected}; {verb} node at depth {depth} with token {token} "
            f"(target margin {margin}, draft gap {gap}){' - a near-tie' if explained else ''}"
        )
        return Difference(self.record.id, step, anchor, expected, found, depth, token, margin, gap, explained, message)

    def _draft_gap(self, anchor: int, depth: int) -> float | None:
        """How near the deciding node was to leaving the tree, or (negative) to being in it; None when unknown.

        It can leave by its score or by no longer being a candidate of its position. For the chain, the gap that decided it.
        """
        anchors = self.record.anchors
        if anchors is None:
            return None
        if self.mode == "chain":
            return anchors.chain_slack[anchor]
        scores = [*anchors.scores[anchor], *(anchors.missed[anchor : anchor + 1] or [None])]
        score = scores[depth - 1] if depth <= len(scores) else None
        if score is None:
            return None
        edges = anchors.edges[anchor] if anchors.edges else []
        return round(min([score - anchors.cutoffs[self.mode][anchor], *edges[depth - 1 : depth]]), 5)

    def _text_difference(self, position: int, accepted: list[int]) -> Difference:
        margin = self.record.margins[position] if position < len(self.record.margins) else None
        explained = _tie(margin, self.bounds.target)
        token = self.record.greedy_ids[position]
        got = self.output[position] if self.output is not None else None
        step, anchor = _step_of(position, accepted)
        if step >= 0:
            where = f", step {step} (node at depth {position - anchor - 1}, whose prediction it is)"
        else:
            where = " (from the prefill)" if position == 0 else ""
        message = (
            f"prompt {self.record.id}{where}: generated token {position} is {got} where the target's own is {token} "
            f"(target margin {margin}){' - a near-tie' if explained else ''}"
        )
        return Difference(
            self.record.id,
            step,
            anchor if step >= 0 else position,
            0,
            0,
            max(0, position - anchor - 1),
            token,
            margin,
            None,
            explained,
            message,
        )

    def _short(self, step: int, anchor: int) -> Difference:
        message = (
            f"prompt {self.record.id}: the trace ends after step {step - 1} with {anchor + 1} of "
            f"{self.new_tokens} tokens; the request was cut off or the trace was full"
        )
        return Difference(self.record.id, step, anchor, 0, 0, 0, None, None, None, False, message)


def _step_of(position: int, accepted: Sequence[int]) -> tuple[int, int]:
    """(step, its anchor) that produced the generated token ``position``; step -1 for the prefill's token."""
    anchor = 0
    for step, count in enumerate(accepted):
        if anchor < position <= anchor + count:
            return step, anchor
        anchor += count
    return -1, 0
