"""The adaptive controller against simulated engines: it finds what pays, and never costs more than 2 % of the chain's speed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ddtree.controller import START_ALLOWANCE, Controller

settings.register_profile("engine", max_examples=60, deadline=None)
settings.load_profile("engine")

LEVELS = 15
NODES = (15, 15, 32, 64)
# (tokens produced so far, width, step, controller) -> (how often the chain's next token is right, how often a sibling saves a miss)
Text = Callable[[float, int, int, Controller], tuple[float, float]]


def one_walk(rng: random.Random, chain_share: float, saved: float, nodes: int) -> tuple[list[int], int]:
    """Entry orders of the nodes the widest tree accepts, and the chain's accepted nodes."""
    order: list[int] = []
    chain, on_chain, last = 0, True, 0
    for depth in range(1, LEVELS + 1):
        if on_chain and rng.random() < chain_share:
            chain += 1
            last = max(last + 1, depth)
        elif rng.random() < (saved if on_chain else saved * 0.5 + chain_share * 0.4):
            on_chain = False
            last += 1 + int(rng.random() ** 2 * (nodes - last))
        else:
            break
        if last > nodes:
            break
        order.append(last)
    return order, chain


@dataclass
class Engine:
    """A decode loop whose steps cost ``costs(width, step)`` and whose text is ``text``.

    delay: steps until a step's time is known.  stride: only every so many steps' walks are told (as on a GPU).
    """

    text: Text
    costs: Callable[[int, int], float]  # (width, step) -> seconds
    bs: int = 1
    noise: float = 0.02
    seed: int = 0
    delay: int = 0
    stride: int = 1
    used: list[int] = field(default_factory=lambda: [0] * len(NODES))

    def speedup(self, steps: int) -> float:
        """Time a server that only has the chain would have taken for the same text, over the time taken.

        The chain's own luck is taken out: a step is worth the tokens it got beyond the chain's in the same place.
        """
        rng, controller = random.Random(self.seed), Controller(NODES, LEVELS)
        spent = worth = produced = 0.0
        late: list[tuple[int, int, float, list[list[int]]]] = []
        for step in range(steps):
            width = controller.choose(self.bs)
            self.used[width] += 1
            share, saved = self.text(produced / self.bs, width, step, controller)
            rows, beyond = [], 0
            for _ in range(self.bs):
                order, chain = one_walk(rng, share, saved, NODES[-1])
                if width == 0:
                    order = list(range(1, chain + 1))
                order = [entered for entered in order if entered <= NODES[width]]
                rows.append([*order, *[0] * (LEVELS - len(order)), min(chain, len(order)), LEVELS])
                produced += 1 + len(order)
                beyond += len(order) - chain
            seconds = self.costs(width, step) * max(1 + rng.gauss(0, self.noise), 0.2)
            length = 1 + sum(share**depth for depth in range(1, LEVELS + 1))
            spent += seconds
            worth += (1 + beyond / self.bs / length) * self.costs(0, step)
            late.append((step, width, seconds, rows))
            if step >= self.delay:
                then, before, took, walks = late.pop(0)
                controller.note_time(before, self.bs, took)
                if then % self.stride == 0:
                    controller.note_walks(before, walks, self.stride)
        return worth / spent


def constant(*costs: float) -> Callable[[int, int], float]:
    return lambda width, step: costs[width]


def flipping(period: int) -> Text:
    return lambda tokens, width, step, controller: (0.7, 0.6) if int(tokens / period) % 2 else (0.85, 0.0)


def betraying(tokens: float, width: int, step: int, controller: Controller) -> tuple[float, float]:
    """Trees pay while they are tried, and not once they are relied on."""
    return (0.7, 0.8) if controller.probing or width == 0 else (0.9, 0.0)


def always(share: float, saved: float) -> Text:
    return lambda *place: (share, saved)


HOSTILE = {
    "trees never pay": (always(0.7, 0.05), constant(1, 1.02, 1.4, 1.9)),
    "trees are slightly too dear": (always(0.75, 0.1), constant(1, 1.02, 1.08, 1.15)),
    "the text flips every 50 tokens": (flipping(50), constant(1, 1.02, 1.2, 1.4)),
    "the text flips every 300 tokens": (flipping(300), constant(1, 1.02, 1.2, 1.4)),
    "trees pay until they are relied on": (betraying, constant(1, 1.02, 1.3, 1.6)),
    "trees become dear": (always(0.7, 0.6), lambda width, step: constant(*((1, 1, 1.05, 1.1) if step < 500 else (1, 1.3, 2, 3)))(width, step)),
    "the widest is far too wide": (always(0.7, 0.3), constant(1, 1.1, 3, 6)),
}  # fmt: skip


@pytest.mark.parametrize("bs", [1, 4])
@pytest.mark.parametrize("case", HOSTILE)
def test_never_slower_than_98_percent_of_the_chain(case, bs):
    text, costs = HOSTILE[case]
    assert Engine(text, costs, bs).speedup(800) >= 0.98
    assert Engine(text, costs, bs, delay=3, stride=4).speedup(1200) >= 0.98


@given(
    st.lists(st.tuples(st.floats(0.1, 0.95), st.floats(0.0, 0.9)), min_size=1, max_size=6),
    st.integers(10, 400), st.lists(st.floats(0.8, 4.0), min_size=3, max_size=3), st.sampled_from([1, 3]), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=10, derandomize=True)
def test_never_slower_than_98_percent_of_the_chain_on_any_text(regimes, period, costs, bs, seed):
    def text(tokens: float, *place: object) -> tuple[float, float]:
        return regimes[int(tokens / period) % len(regimes)]

    assert Engine(text, constant(1.0, *costs), bs, seed=seed).speedup(800) >= 0.98


@pytest.mark.parametrize(("costs", "best"), [((1, 1, 1.05, 1.1), 3), ((1, 1.0, 1.5, 2.5), 1), ((1, 1.3, 1.05, 4.0), 2)])
def test_finds_the_width_that_pays(costs: Sequence[float], best: int):
    running = Engine(always(0.7, 0.6), constant(*costs), bs=4)
    assert running.speedup(1500) > 1.02
    assert running.used.index(max(running.used)) == best


def test_ends_in_the_chain_when_no_tree_pays():
    running = Engine(always(0.8, 0.0), constant(1, 1.3, 1.6, 2.0), bs=2)
    running.speedup(1500)
    assert running.used[0] > 0.95 * sum(running.used)


def test_batch_sizes_are_judged_apart():
    """Trees pay for one request and not for sixteen."""
    rng, controller = random.Random(0), Controller(NODES, LEVELS)
    used = {1: [0] * 4, 16: [0] * 4}
    for step in range(2400):
        bs = 1 if step // 40 % 2 else 16
        width = controller.choose(bs)
        used[bs][width] += 1
        rows = []
        for _ in range(bs):
            order, chain = one_walk(rng, 0.7, 0.6, NODES[-1])
            order = list(range(1, chain + 1)) if width == 0 else [e for e in order if e <= NODES[width]]
            rows.append([*order, *[0] * (LEVELS - len(order)), min(chain, len(order)), LEVELS])
        controller.note_time(width, bs, (1, 1.02, 1.05, 1.1)[width] if bs == 1 else (1, 1.6, 2.4, 3.5)[width])
        controller.note_walks(width, rows)
    assert used[1][3] > 0.6 * sum(used[1])
    assert used[16][0] > 0.9 * sum(used[16])


def test_one_long_pause_does_not_turn_the_decision():
    controller = Controller(NODES, LEVELS)
    for _ in range(50):
        controller.note_time(0, 1, 1.0)
    controller.note_time(0, 1, 500.0)
    assert controller.cost(1, 0) < 1.3


@pytest.mark.parametrize("width", [0, 3])
def test_a_pause_in_a_first_step_is_neither_a_cost_nor_a_gain(width: int):
    """A width's first use may capture or compile: it is no reason to leave the width, and the chain's no credit to trees."""
    controller = Controller(NODES, LEVELS)
    for first in sorted({0, width}):
        for step in range(12):
            controller.note_time(first, 1, 150.0 if first == width and step == 0 else 1.0)
    assert controller.cost(1, width) == pytest.approx(1.0)
    assert -START_ALLOWANCE <= controller.ledger.won <= 0.01
    assert controller.ledger.spent < 30


def test_gains_count_also_while_a_width_is_fixed():
    """Nobody asks for a choice then; costs that were booked without their gains would keep trees out afterwards."""
    rng, controller = random.Random(0), Controller(NODES, LEVELS)
    for _ in range(20):
        controller.note_time(0, 4, 1.0)
    for _ in range(300):
        walks = [one_walk(rng, 0.7, 0.6, NODES[-1]) for _ in range(4)]
        controller.note_time(3, 4, 1.1)
        controller.note_walks(3, [[*order, *[0] * (LEVELS - len(order)), chain, LEVELS] for order, chain in walks])
    assert controller.ledger.won > 20


def test_noise_in_the_chains_own_steps_is_no_loss():
    rng, controller = random.Random(0), Controller(NODES, LEVELS)
    for bs in (1, 2, 4, 8):
        for _ in range(400):
            controller.note_time(0, bs, rng.uniform(0.6, 1.4))
    assert controller.ledger.won == 0.0


def test_a_chain_that_runs_past_the_tree_is_not_taken_for_one_that_failed():
    """Trees that hold three nodes of the chain, all accepted: the chain's further nodes are estimated, not lost."""
    controller = Controller(NODES, LEVELS)
    for _ in range(200):
        controller.note_walks(0, [[*range(1, 7), *[0] * 9, 6, LEVELS]])
    assert controller.chain_length() == pytest.approx(7, abs=0.01)
    for _ in range(100):
        controller.note_walks(3, [[1, 2, 3, *[0] * 12, 3, 3]])
    assert controller.chain_length() == pytest.approx(7, abs=0.01)
    assert controller.length(3) == pytest.approx(4, abs=0.1)
