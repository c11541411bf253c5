"""Chooses a width by measured step times and acceptance, and bounds what its choices may cost against the chain.

Plain numbers in, a width's index out: no tensors, no clock, no SGLang.  Index 0 is the chain.

Each walk through a tree tells what the chain and every narrower tree would have accepted (see ``entry_order``), so the
gains of all narrower widths over the chain are paired observations.  A ledger keeps the time won and lost against the
chain; a tree is only tried while the ledger's loss stays below ``ALLOWED_LOSS`` of the time spent, whatever the
estimates say (a conservative bandit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

ALLOWED_LOSS = 0.01  # share of the time that may be lost to the chain, over the ledger's memory
START_ALLOWANCE = 3.0  # chain steps that may be lost before anything was won
MARGIN = 0.01  # a wider tree must promise this much more than the width in force
HOLD = 4  # steps for which a decision stands
PROBE_AGE = 96  # steps after which a width's figures are old enough to be measured again
PROBE_SHARE = 0.005  # share of the time that measuring other widths may cost
_SPREAD = 1.5  # tokens by which one walk's gain over the chain strays from its mean; few walks are judged with hope
_FIRST = 3  # step times of which the shortest counts: a width's first steps often fall into a pause
_GAIN_RATE, _COST_RATE, _SURVIVAL_RATE, _LEDGER_RATE = 1 / 64, 1 / 16, 1 / 256, 1 / 4096


@dataclass
class _Mean:
    """A mean that starts as an average and then forgets at ``rate`` per observation."""

    rate: float
    value: float = 0.0
    count: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.count += weight
        share = max(weight / self.count, 1 - (1 - self.rate) ** weight)
        self.value += min(share, 1.0) * (value - self.value)


@dataclass
class _Bucket:
    """Step times of every width for one range of batch sizes, the steps since it ran last, and whether it ever ran."""

    cost: list[_Mean]
    age: list[int]
    tried: list[bool]

    def awaited(self, width: int) -> bool:
        """Whether the width ran for the first time and its step time has not arrived yet."""
        return self.tried[width] and not self.cost[width].count and self.age[width] < PROBE_AGE


@dataclass
class Ledger:
    """Seconds won over the chain (negative: lost) and seconds spent, both fading."""

    won: float = 0.0
    spent: float = 0.0

    def spend(self, seconds: float, chain_seconds: float) -> None:
        keep = 1 - _LEDGER_RATE
        self.won = self.won * keep - (seconds - chain_seconds)
        self.spent = self.spent * keep + seconds

    def allows(self, risk: float, chain_seconds: float) -> bool:
        """Whether ``risk`` more seconds may be lost."""
        return self.won - risk >= -(ALLOWED_LOSS * self.spent + START_ALLOWANCE * chain_seconds)


@dataclass
class Controller:
    """nodes: budgets of the widths, ascending, the first being the chain's.  levels: L, the greatest depth."""

    nodes: Sequence[int]
    levels: int
    ledger: Ledger = field(default_factory=Ledger)
    current: int = 0
    probing: bool = False

    def __post_init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._gain = [_Mean(_GAIN_RATE) for _ in self.nodes]
        self._at_risk = np.zeros(self.levels)
        self._passed = np.zeros(self.levels)
        self._expected: list[float] | None = None  # of ``_beyond``, until the next walk
        self._bucket_in_force = -1
        self._held = 0
        self._settled = 0  # the width in force outside probes

    # -- what was measured ---------------------------------------------------------------------------------
    def note_time(self, width: int, batch_size: int, seconds: float) -> None:
        """One step at ``width`` took ``seconds``."""
        bucket = self._bucket(batch_size)
        cost, chain = bucket.cost[width], bucket.cost[0]
        # A pause that is not the step's own (a first use, garbage collection, another process) must not count in full.
        if cost.count < _FIRST:
            spent = cost.value = min(seconds, cost.value) if cost.count else seconds
            if not cost.count and chain.count:
                spent = min(seconds, 3 * chain.value)
            cost.count += 1
        else:
            spent = min(seconds, 3 * cost.value)
            cost.add(spent)
        if width and chain.count:
            self.ledger.spend(spent, chain.value)
        elif not width and cost.count > 1:  # a chain's step is no loss, and its first one may be any pause
            self.ledger.spend(spent, spent)

    def note_walks(self, width: int, walks: Sequence[Sequence[int]], steps: int = 1) -> None:
        """Walks of one step at ``width``, rows of ``entry_order``; they stand for ``steps`` steps."""
        rows = np.asarray(walks, dtype=np.int64)
        order, chain, spine = rows[:, : self.levels], rows[:, -2], rows[:, -1]
        accepted = (order > 0).sum(1)
        censored = (chain == spine) & (spine < self.levels) & (accepted == chain)
        self._note_survival(chain, censored)
        if width == 0:
            return
        further = np.asarray(self._beyond())[np.minimum(chain, self.levels - 1)]
        promised = chain + np.where(censored, further, 0.0)
        for i, nodes in enumerate(self.nodes):
            if i and nodes <= self.nodes[width]:
                gains = ((order > 0) & (order <= nodes)).sum(1) - promised
                self._gain[i].add(float(gains.mean()), len(rows))
                if i == width:
                    self._credit(float(gains.mean()), len(rows), steps)

    def _note_survival(self, chain: np.ndarray, censored: np.ndarray) -> None:
        levels = np.arange(1, self.levels + 1)[None]
        keep = (1 - _SURVIVAL_RATE) ** len(chain)
        passed = levels <= chain[:, None]
        failed = (levels == chain[:, None] + 1) & ~censored[:, None]
        self._passed = self._passed * keep + passed.sum(0)
        self._at_risk = self._at_risk * keep + (passed | failed).sum(0)
        self._expected = None

    def _credit(self, gain: float, batch_size: int, steps: int) -> None:
        chain = self._bucket(batch_size).cost[0]
        if chain.count:
            self.ledger.won += steps * gain / self.chain_length() * chain.value

    # -- estimates -----------------------------------------------------------------------------------------
    def _survival(self) -> list[float]:
        """Share of chains that pass each level once they reached it; a level never reached is taken as the one before."""
        shares, last = [], 0.5
        for passed, at_risk in zip(self._passed.tolist(), self._at_risk.tolist(), strict=True):
            last = passed / at_risk if at_risk >= 1 else last
            shares.append(last)
        return shares

    def _beyond(self) -> list[float]:
        """[L] expected further chain nodes for a chain that reached depth 0 .. L-1.

        Kept until the next walk, and made of plain numbers: every step of a small model waits for this.
        """
        if self._expected is None:
            more, found = 0.0, []
            for share in reversed(self._survival()):
                more = share * (1 + more)
                found.append(more)
            self._expected = found[::-1]
        return self._expected

    def chain_length(self) -> float:
        """Expected tokens of a chain's step."""
        return 1 + self._beyond()[0]

    def length(self, width: int) -> float:
        """Expected tokens per step and request."""
        return self.chain_length() + (self._gain[width].value if width else 0.0)

    def cost(self, batch_size: int, width: int) -> float | None:
        """Expected seconds of a step, None before the chain was measured at this batch size."""
        bucket = self._bucket(batch_size)
        if bucket.cost[width].count:
            return bucket.cost[width].value
        if not bucket.cost[0].count:
            return None
        narrower = next(cost.value for cost in reversed(bucket.cost[:width]) if cost.count)
        # Smaller batches bear width better, so what they say is no exaggeration; else: no dearer than the next narrower.
        number = self._number(batch_size)
        ratios = [
            other.cost[width].value / other.cost[0].value
            for key, other in self._buckets.items()
            if key < number and other.cost[width].count and other.cost[0].count
        ]
        return bucket.cost[0].value * max(ratios) if ratios else narrower

    def rate(self, batch_size: int, width: int) -> float:
        """Tokens per second and request that can be hoped for; 0 before anything is known."""
        cost = self.cost(batch_size, width)
        gain = self._gain[width]
        hope = _SPREAD / gain.count**0.5 if width and gain.count else 0.0
        return (self.length(width) + hope) / cost if cost else 0.0

    # -- the decision --------------------------------------------------------------------------------------
    def choose(self, batch_size: int) -> int:
        """The width of the next step."""
        number = self._number(batch_size)
        bucket = self._bucket(batch_size)
        for i in range(len(self.nodes)):
            bucket.age[i] += 1
        if number != self._bucket_in_force or self._held <= 0:
            self._bucket_in_force = number
            self._decide(batch_size, bucket)
            # One step tells enough about a width that was never timed and may be far too wide.
            self._held = HOLD if bucket.cost[self.current].count else 1
        self._held -= 1
        bucket.age[self.current], bucket.tried[self.current] = 0, True
        return self.current

    def _decide(self, batch_size: int, bucket: _Bucket) -> None:
        self.probing = False
        chain = bucket.cost[0]
        if chain.count < 2 * HOLD:
            self.current = self._settled = 0
            return
        rates = [self.rate(batch_size, i) for i in range(len(self.nodes))]
        known = [i for i in range(len(self.nodes)) if i == 0 or (self._gain[i].count and not bucket.awaited(i))]
        best = max(known, key=lambda i: rates[i])
        settled = self._settled if self._settled in known and rates[self._settled] > rates[0] else 0
        if rates[best] > (1 + MARGIN) * rates[settled]:
            settled = best
        if settled and not self._affordable(batch_size, settled, chain.value):
            settled = 0
        self._settled = settled
        probe = self._probe(batch_size, bucket, rates, settled)
        self.probing = probe is not None
        self.current = settled if probe is None else probe

    def _affordable(self, batch_size: int, width: int, chain: float) -> bool:
        cost = self.cost(batch_size, width) or 2 * chain
        return self.ledger.allows(HOLD * max(cost - chain, 0.0), chain)

    def _probe(self, batch_size: int, bucket: _Bucket, rates: list[float], settled: int) -> int | None:
        """A width whose figures are old, when finding out costs little enough."""
        share = PROBE_SHARE / (len(self.nodes) - 1)
        # The widest first: it tells about all the others.
        for i in sorted(range(len(self.nodes)), key=lambda i: -self.nodes[i]):
            if i == settled or bucket.awaited(i) or (bucket.cost[i].count and bucket.age[i] < PROBE_AGE):
                continue
            unknown = i > 0 and not self._gain[i].count
            loss = 1.0 if unknown else max(1 - rates[i] / rates[settled], 0.05)
            first = unknown and i == len(self.nodes) - 1
            if (first or bucket.age[i] * share >= HOLD * loss) and (
                i == 0 or self._affordable(batch_size, i, bucket.cost[0].value)
            ):
                return i
        return None

    @staticmethod
    def _number(batch_size: int) -> int:
        """Batch sizes 1, 2, 3-4, 5-8, 9-16 ... share a bucket."""
        return max(batch_size - 1, 0).bit_length()

    def _bucket(self, batch_size: int) -> _Bucket:
        number = self._number(batch_size)
        if number not in self._buckets:
            count = len(self.nodes)
            self._buckets[number] = _Bucket([_Mean(_COST_RATE) for _ in range(count)], [0] * count, [False] * count)
        return self._buckets[number]

    def state(self) -> dict[str, object]:
        """The estimates, for people: tokens per step by width, milliseconds by largest batch size and width."""
        return {
            "tokens_per_step": [round(self.length(i), 3) for i in range(len(self.nodes))],
            "step_ms": {
                str(1 << number): [round(1e3 * c.value, 3) if c.count else None for c in bucket.cost]
                for number, bucket in sorted(self._buckets.items())
            },
            "won_seconds": round(self.ledger.won, 4),
            "spent_seconds": round(self.ledger.spent, 4),
        }
