"""The paired sweep: linear against each tree budget, in adjacent blocks of alternating order, judged row by row.

Beside: both servers run at once; pair p is measured linear-tree or tree-linear in turn (ABBA), and the linear
arm is measured anew for every budget. In turns (`beside=False`), for hosts with room for one server: each pass
opens every arm once, every second pass in reverse order, so that a slow drift of the host cancels.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from orchestrator.bench.arm import ArmFactory, OpenArm, RowSettings
from orchestrator.bench.lossless import Gap, ties
from orchestrator.bench.prompts import WARM_UP, Prompt, set_hash
from orchestrator.bench.result import SweepResult
from orchestrator.bench.rows import LINEAR, TREE, Row
from orchestrator.bench.summary import MIN_PAIRS, Pair, hopeless, pairs_of, summarise_arm
from orchestrator.bench.validity import judge
from orchestrator.bench.verdict import decide
from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.transport.base import ConnectionLost

RowSink = Callable[[Row], None]
Progress = Callable[[str, float, float], None]  # text, done, total (in pairs)
GATE_PROMPTS = 8
TURNS_AT_MOST = 4  # two passes make the pairs asked for, two more replace pairs that turned out invalid


def run_paired_sweep(
    linear: ArmFactory,
    tree: Callable[[int], ArmFactory],
    budgets: Sequence[int],
    prompts: Sequence[Prompt],
    pairs: int = MIN_PAIRS,
    max_tokens: int = 128,
    margin: float = 0.02,
    on_row: RowSink = lambda row: None,
    on_progress: Progress = lambda text, done, total: None,
    *,
    concurrencies: Sequence[int] = (1,),
    group_size: int = 1,
    temperature: float = 0.0,
    seed: int = 1,
    beside: bool = True,
    min_pairs: int = MIN_PAIRS,
    max_live_load: float = 0.0,
    client_delay_limit_s: float | None = None,
    tie_nats: float = 0.0,
    judge_of_ties: Gap | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
    done_rows: Sequence[Row] = (),
    fingerprint: str = "",
    warm_up: Sequence[Prompt] = WARM_UP,
) -> SweepResult:
    """Measure `pairs` valid pairs per budget and concurrency, and decide.

    margin: the least relative gain worth a change, fixed beforehand (0.02 = 2 %). group_size: prompts per pair
    (at least the concurrency). client_delay_limit_s: how late (p99) this program itself may run; by default
    5 ms, and 100 ms beside a server that computes on the CPU. tie_nats: the largest preference of the linear server for
    its own token that counts as none where both outputs part (see orchestrator.bench.lossless). judge_of_ties: asked where
    neither server tells its preference. out_of_time: asked before
    each pair; when true, what was measured until then is summed up. done_rows: rows of an interrupted sweep; their
    pairs are not measured again. fingerprint: of the engines of both arms; done_rows with another one do not count.
    on_row gets each row of a complete pair, judged; on_progress may raise to cancel. A budget whose server does not
    start is skipped with its reason; a linear arm that does not start raises.
    """
    if not prompts or pairs < 1 or not budgets or min(budgets) < 1:
        raise UsageError("A paired sweep needs prompts, at least one pair, and budgets of 1 node or more.")
    settings = RowSettings(
        max_tokens, temperature, seed, max_live_load, client_delay_limit_s, set_hash(prompts), fingerprint
    )
    sweep = _Sweep(
        linear, tree, list(budgets), list(prompts), pairs, settings, list(concurrencies), group_size,
        margin, tie_nats, judge_of_ties, list(warm_up), on_row, on_progress, out_of_time, _of_this_sweep(done_rows, settings, group_size),
    )  # fmt: skip
    if beside:
        sweep.run_beside()
    else:
        sweep.run_in_turns()
    return sweep.result(min_pairs)


def _of_this_sweep(rows: Sequence[Row], settings: RowSettings, group_size: int) -> list[Row]:
    """Those of the same engines and prompts, dealt out and asked in the same way: others can't stand beside new ones."""
    asked = settings.fingerprint, settings.set_hash, settings.max_tokens, settings.temperature
    return [
        row
        for row in rows
        if (row.fingerprint, row.set_hash, row.max_tokens, row.temperature) == asked
        and len(row.requests) == max(group_size, row.concurrency)
    ]


@dataclass
class _Sweep:
    linear: ArmFactory
    tree: Callable[[int], ArmFactory]
    budgets: list[int]
    prompts: list[Prompt]
    pairs: int
    settings: RowSettings
    concurrencies: list[int]
    group_size: int
    margin: float
    tie_nats: float
    judge_of_ties: Gap | None
    warm_up: list[Prompt]
    on_row: RowSink
    on_progress: Progress
    out_of_time: Callable[[], bool]
    rows: list[Row]
    skipped: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # those of the skipped whose server ended with an error
    looping: set[str] = field(default_factory=set)
    gate: dict[int, bool] = field(default_factory=dict)
    references: dict[str, list[int]] = field(default_factory=dict)
    block: int = 0
    last_arm: str = ""
    nonce: str = field(default_factory=lambda: secrets.token_hex(3))

    def __post_init__(self) -> None:
        self.block = max((r.block for r in self.rows), default=-1) + 1
        for row in self.rows:
            self._note_loops(row)

    # -- both servers at once ---------------------------------------------------------------------------

    def run_beside(self) -> None:
        with ExitStack() as stack:
            line: OpenArm | None = None
            for budget in self.budgets:
                if not self._lacks(budget) or self._stopped(budget):
                    continue
                line = line or stack.enter_context(OpenArm(self.linear))
                try:
                    with OpenArm(self.tree(budget)) as wide:
                        self._check_gate(budget, line, wide)
                        for concurrency in self.concurrencies:
                            self._budget_beside(line, wide, budget, concurrency)
                except ConnectionLost:
                    raise  # also where it is back by now: no tree is to blame
                except OrchestrateError as exc:
                    line.require_same()  # raises when it is the linear arm, or the way to the host, that is gone
                    self.skipped[budget] = self.failed[budget] = str(exc)

    def _budget_beside(self, line: OpenArm, wide: OpenArm, budget: int, concurrency: int) -> None:
        for pair in self._open_pairs(budget, concurrency):
            group = self._group(pair, concurrency)
            if not (line.arm.flush and wide.arm.flush):  # a live service keeps its cache, and may know the prompts
                tag = f"({self.nonce}, {concurrency}, {budget}, {pair})"
                group = [prompt.opened_with(tag) for prompt in group]
            arms = [(LINEAR, line), (TREE, wide)]
            rows = {
                name: self._measure(arm, name, budget, concurrency, pair, group)
                for name, arm in (arms if pair % 2 == 0 else reversed(arms))
            }
            found = None
            if line.outputs != wide.outputs and rows[LINEAR].temperature == 0:
                found = ties(self._gap(line, wide), group, line.outputs, wide.outputs, self.tie_nats)
            self._keep(rows[LINEAR], rows[TREE], found)
            if self._given_up(budget, concurrency):
                return

    def _gap(self, line: OpenArm, wide: OpenArm) -> Gap:
        """Asks the linear server, then the tree's, then the judge: all of them have the same target model."""

        def gap(prompt: Prompt, prefix: Sequence[int], wanted: int, got: int) -> float | None:
            asked = (line.gap, wide.gap, *([self.judge_of_ties] if self.judge_of_ties else []))
            told = (ask(prompt, prefix, wanted, got) for ask in asked)
            return next((value for value in told if value is not None), None)

        return gap

    def _open_pairs(self, budget: int, concurrency: int) -> Iterator[int]:
        """Numbers of pairs still to measure; spare ones replace pairs that turn out invalid.

        A group with a prompt whose greedy output is known to loop would be invalid again, so it is passed over.
        """
        tries_left = self.pairs + max(4, self.pairs)
        for pair in range(3 * self.pairs + len(self.prompts)):
            if self._enough(budget, concurrency) or not tries_left or self._stopped(budget):
                return
            known = (concurrency, budget, pair) in {(r.concurrency, r.budget, r.pair) for r in self.rows}
            if not known and not any(p.id in self.looping for p in self._group(pair, concurrency)):
                tries_left -= 1
                yield pair

    def _stopped(self, budget: int) -> bool:
        """Whether the time is up, which is then why this budget has fewer pairs."""
        if self.out_of_time():
            self.skipped.setdefault(budget, "no time was left for its other pairs")
            return True
        return False

    # -- one server at a time ---------------------------------------------------------------------------

    def run_in_turns(self) -> None:
        share = -(-self.pairs // 2)
        for number in range(TURNS_AT_MOST):
            open_budgets = [
                b for b in self.budgets if b not in self.skipped and self._lacks(b) and not self._stopped(b)
            ]
            if not open_budgets:
                return
            first = number * share
            self._pass([0, *open_budgets], range(first, first + share), backwards=number % 2 == 1)

    def _pass(self, order: list[int], numbers: range, backwards: bool) -> None:
        """Open each arm of `order` once (0 = linear) and measure the pairs `numbers` on it."""
        rows: dict[int, dict[tuple[int, int], Row]] = {}
        if self._pass_done(order[1:], numbers):
            return
        for budget in reversed(order) if backwards else order:
            self._turn(budget, numbers, rows)
        for budget in order[1:]:
            for key, tree_row in rows.get(budget, {}).items():
                self._keep(rows[0][key], tree_row)
            for concurrency in self.concurrencies:
                self._given_up(budget, concurrency)

    def _lacks(self, budget: int) -> bool:
        return not all(self._enough(budget, c) for c in self.concurrencies)

    def _turn(
        self,
        budget: int,
        numbers: range,
        rows: dict[int, dict[tuple[int, int], Row]],
    ) -> None:
        """Open one arm (budget 0 = linear) and measure its rows of this pass."""
        if budget in self.skipped:
            return
        name, factory = (TREE, self.tree(budget)) if budget else (LINEAR, self.linear)
        try:
            with OpenArm(factory) as arm:
                self.last_arm = ""  # each turn is a block of its own, also right after a turn of the same arm
                self._gate_in_turn(budget, arm)
                rows[budget] = {
                    (c, p): self._measure(arm, name, budget, c, p, self._group(p, c))
                    for p in numbers
                    for c in self.concurrencies
                }
        except OrchestrateError as exc:
            if not budget or isinstance(exc, ConnectionLost):
                raise
            self.skipped[budget] = self.failed[budget] = str(exc)

    def _pass_done(self, budgets: list[int], numbers: range) -> bool:
        done = {(r.concurrency, r.budget, r.pair) for r in self.rows if r.arm == TREE}
        return {(c, b, p) for c in self.concurrencies for b in budgets for p in numbers} <= done

    # -- common -----------------------------------------------------------------------------------------

    def _group(self, pair: int, concurrency: int) -> list[Prompt]:
        """The prompts of a pair; both arms get the same, and so does every budget."""
        size = max(self.group_size, concurrency)
        return [self.prompts[(pair * size + i) % len(self.prompts)] for i in range(size)]

    def _measure(self, arm: OpenArm, name: str, budget: int, concurrency: int, pair: int, group: list[Prompt]) -> Row:
        label = f"{name} {budget}" if name == TREE else name
        total = self.pairs * len(self.budgets) * len(self.concurrencies)
        self.on_progress(f"pair {pair + 1}: {label}, {concurrency} at once", len(self._pairs_kept()), total)
        if self.last_arm != label:
            self.block, self.last_arm = self.block + 1, label
        row = arm.measure(
            self.settings, group, arm=name, budget=budget, concurrency=concurrency, pair=pair,
            block=self.block, warm_up=self.warm_up,
        )  # fmt: skip
        self._note_loops(row)
        return row

    def _note_loops(self, row: Row) -> None:
        if row.temperature == 0:
            flagged = [f.rule for f in judge(row).findings]
            if flagged == ["repetition-loop"]:
                self.looping |= {r.prompt_id for r in row.requests if r.loop_share > 0.5}

    def _keep(self, line: Row, wide: Row, ties_found: int | None = None) -> None:
        """Judge both rows of a pair, with what only the pair can tell, and hand them out.

        ties_found: so many outputs differ, all of them at ties of the linear arm; None when that is not known.
        """
        lossless = self.gate.get(wide.budget)
        if line.temperature == 0:
            compared = [a.same_output(b) for a, b in zip(line.requests, wide.requests, strict=True)]
            same = [one for one in compared if one is not None]
            lossless = (all(same) or ties_found is not None) if same else lossless
        judged_line = judge(replace(line, other_graphs=wide.graphs, other_engine=wide.engine))
        judged_wide = judge(
            replace(wide, other_graphs=line.graphs, other_engine=line.engine, lossless=lossless, ties=ties_found or 0)
        )
        known = {r.key: r.block for r in self.rows}
        if judged_wide.key in known:
            return
        if known.get(line.key, line.block) != line.block:  # an earlier session's, for the trees of that time
            judged_line = replace(judged_line, budget=wide.budget)
        for row in (judged_line, judged_wide):
            if row.key not in known:
                self.rows.append(row)
                self.on_row(row)

    def _pairs_kept(self) -> list[Pair]:
        return [p for p in pairs_of(self.rows) if p.valid]

    def _pairs_at(self, budget: int, concurrency: int) -> list[Pair]:
        pairs = pairs_of(self.rows)
        return [p for p in pairs if p.tree.budget == budget and p.tree.concurrency == concurrency]

    def _enough(self, budget: int, concurrency: int) -> bool:
        at = self._pairs_at(budget, concurrency)
        return sum(p.valid for p in at) >= self.pairs or hopeless(at)

    def _given_up(self, budget: int, concurrency: int) -> bool:
        at = self._pairs_at(budget, concurrency)
        if sum(p.valid for p in at) < self.pairs and hopeless(at):
            self.skipped[budget] = f"slower than linear beyond doubt after {sum(p.valid for p in at)} pairs"
            return True
        return False

    def _check_gate(self, budget: int, line: OpenArm, wide: OpenArm) -> None:
        """Sampled outputs can't be compared one by one, so a greedy sample is, in this same deployment."""
        if self.settings.temperature > 0 and budget not in self.gate:
            self._gate_in_turn(0, line)
            self._gate_in_turn(budget, wide)

    def _gate_in_turn(self, budget: int, arm: OpenArm) -> None:
        if self.settings.temperature == 0:
            return
        outputs = {p.id: arm.greedy_ids(p, self.settings.max_tokens) for p in self.prompts[:GATE_PROMPTS]}
        if not budget:
            self.references = outputs
        elif self.references:
            self.gate[budget] = all(outputs.values()) and outputs == self.references

    def result(self, min_pairs: int) -> SweepResult:
        arms = []
        for concurrency in self.concurrencies:
            for budget in self.budgets:
                at = self._pairs_at(budget, concurrency)
                if at:
                    arms.append(summarise_arm(at, self.margin, len(self.budgets), min_pairs))
        facts = {
            "margin": self.margin,
            "pairs": self.pairs,
            "min_pairs": min_pairs,
            "max_tokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "seed": self.settings.seed,
            "budgets": self.budgets,
            "concurrencies": self.concurrencies,
            "prompts": len(self.prompts),
            "prompt_set": self.settings.set_hash,
            "categories": sorted({p.category for p in self.prompts}),
        }
        verdict = decide(arms, self.margin, self.concurrencies, self.failed)
        return SweepResult(tuple(self.rows), tuple(arms), verdict, facts, self.skipped)
