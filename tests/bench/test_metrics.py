"""Figures of recorded streams, exact."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.bench.clock import FakeClock
from orchestrator.bench.load import arrival_times, closed_loop, open_loop
from orchestrator.bench.metrics import Objective, Spread, measure, percentile, summarise
from orchestrator.openai.records import Completion, Delivery


def request(deliveries: list[Delivery], tokens: int | None, sent: float = 10.0, ended: float = 11.0) -> Completion:
    return Completion(
        prompt_id="p", sent_at_s=sent, ended_at_s=ended, status=200, completion_tokens=tokens, terminated=True,
        deliveries=deliveries, prompt_tokens=3,
    )  # fmt: skip


CHUNKED = request([Delivery(10.2, 1, 1), Delivery(10.4, 4, 5), Delivery(10.8, 2, 7)], 7)


def test_times_by_tokens_not_by_chunks() -> None:
    m = measure(CHUNKED)
    assert m.ttft_s == pytest.approx(0.2)
    assert m.itl_s == pytest.approx(0.6 / 6)
    assert m.tpot_s == pytest.approx(0.8 / 7)
    assert m.e2e_s == 1.0
    assert m.gaps_s == pytest.approx((0.2, 0.4))
    assert m.token_gaps_s == pytest.approx((0.05,) * 4 + (0.2,) * 2)
    assert m.tok_s == 7.0


def test_reasoning_counts_as_first_token_but_not_as_first_content() -> None:
    m = measure(request([Delivery(10.1, 1, reasoning=True), Delivery(10.6, 1)], 2))
    assert (m.ttft_s, m.ttfc_s) == pytest.approx((0.1, 0.6))
    assert m.token_gaps_s == ()


def test_nothing_and_single_tokens_have_no_inter_token_latency() -> None:
    assert measure(request([], None)).ttft_s is None
    one = measure(request([Delivery(10.5, 1, 1)], 1))
    assert (one.itl_s, one.tpot_s) == (None, pytest.approx(0.5))


def test_failed_requests_are_counted_but_not_timed() -> None:
    broken = request([Delivery(10.1, 1, 1)], 1)
    broken.error = "reset"
    summary = summarise([measure(CHUNKED), measure(broken)], 2.0, Objective(ttft_s=0.25))
    assert (summary.requests, summary.failed, summary.tokens) == (2, 1, 7)
    assert summary.tok_s == 3.5
    assert summary.ttft.n == 1
    assert (summary.goodput_share, summary.goodput_req_s) == (0.5, 0.5)


@pytest.mark.parametrize("limit", [Objective(ttft_s=0.1), Objective(itl_s=0.05), Objective(e2e_s=0.9)])
def test_an_objective_missed_in_one_figure_is_missed(limit: Objective) -> None:
    assert summarise([measure(CHUNKED)], 1.0, limit).goodput_share == 0.0
    assert summarise([measure(CHUNKED)], 1.0).goodput_share is None


def test_percentiles_interpolate() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([5], 99) == 5
    assert percentile([], 50) is None
    assert Spread.of([None, None]).mean is None


async def drive(clock: FakeClock, load: object) -> object:
    task = asyncio.ensure_future(load)  # type: ignore[arg-type]
    await clock.run_until_idle()
    return await task


async def test_closed_loop_keeps_the_concurrency_and_no_more() -> None:
    clock, flying, most = FakeClock(), 0, 0

    async def send(i: int) -> Completion:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await clock.sleep(1.0 + (i % 2))
        flying -= 1
        return Completion(prompt_id=str(i), ended_at_s=clock.now())

    done = await drive(clock, closed_loop(send, 6, 2))
    assert most == 2
    assert [c.prompt_id for c in done] == [str(i) for i in range(6)]  # type: ignore[attr-defined]
    assert clock.now() == 5.0  # 9 s of work; the worker that is free first takes the next


async def test_open_loop_sends_on_time_although_answers_are_late() -> None:
    clock = FakeClock(100.0)
    sent: list[float] = []

    async def send(i: int) -> Completion:
        sent.append(clock.now() - 100.0)
        await clock.sleep(10.0)
        return Completion(prompt_id=str(i))

    await drive(clock, open_loop(send, 4, rate_per_s=2.0, clock=clock, poisson=False))
    assert sent == [0.0, 0.5, 1.0, 1.5]
    assert clock.now() == 111.5


def test_poisson_arrivals_have_the_rate_and_repeat() -> None:
    times = list(arrival_times(5001, 4.0, poisson=True, seed=3))
    assert times == list(arrival_times(5001, 4.0, poisson=True, seed=3))
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] / 5000 == pytest.approx(0.25, rel=0.05)
