"""The host of the run: what serves, its GPUs, its releases, the dead-man timer, drift, who holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from orchestrator.store.facts import Fact
from orchestrator.tui.blocks import Block, Page, Span, line
from orchestrator.tui.model import Reading
from orchestrator.tui.words import Tone, bar, clock_time, date_time, duration, mebibytes, number

BAR = 10
LIVE = ("live", "serving")
KNOWN_GOOD = ("known-good", "known_good")


def host_page(reading: Reading, now: float) -> list[Block]:
    page = Page()
    host = reading.run.host if reading.run else None
    if host is None:
        page.say("No host yet: there is no run in this store.")
        return page.blocks
    _service(page, reading.facts_of("service", host), now)
    _deadman(page, reading.facts_of("deadman", host), now)
    _gpus(page, reading.facts_of("gpu", host), now)
    _releases(page, reading, host)
    _drift(page, reading.facts_of("drift", host))
    _lock(page, reading, now)
    return page.blocks


def current_release(reading: Reading, host: str | None) -> Mapping[str, Any] | None:
    """The release that the newest facts say is serving."""
    live = [f for f in reading.facts_of("release", host) if f.data.get("current") or f.data.get("state") in LIVE]
    return live[-1].data if live else None


def _service(page: Page, facts: list[Fact], now: float) -> None:
    page.heading("Service")
    if not facts:
        page.say(Span("Nothing recorded yet; `inspect` or a run records it.", Tone.DIM))
        return
    data = facts[-1].data
    nodes = data.get("nodes")
    page.pairs(
        (
            "serves",
            line(Span(str(data.get("algorithm", "unknown")), Tone.STRONG), f", B={nodes}" if nodes else ", no tree"),
        ),
        ("address", str(data.get("url", "–"))),
        ("process", str(data.get("pid", "–"))),
        *(
            (("accepts", f"{number(data['accept_length'])} tokens a step"),)
            if _figure(data.get("accept_length"))
            else ()
        ),
        *((("speed", f"{number(data['tok_s'], 1)} tokens/s"),) if _figure(data.get("tok_s")) else ()),
        ("as of", _as_of(facts[-1], now)),
    )


def _deadman(page: Page, facts: list[Fact], now: float) -> None:
    page.heading("Dead-man timer")
    armed = [fact for fact in facts if fact.data.get("armed")]
    if not armed:
        page.say("not armed: no cut-over waits for its confirmation")
    for fact in armed:
        _armed(page, fact, now)


def _armed(page: Page, fact: Fact, now: float) -> None:
    data, fires_at = fact.data, _fires_at(fact)
    release = str(data.get("release", "the previous release"))
    if fires_at is None:
        page.say(Span("ARMED", Tone.WARN), f": restores {release} unless the cut-over is confirmed")
        return
    left = fires_at - now
    if left <= 0:
        page.say(
            Span("ITS TIME IS UP", Tone.BAD), f": the host should be back on {release} since {clock_time(fires_at)}"
        )
        return
    page.say(
        Span("ARMED", Tone.WARN), f": restores {release} in ", Span(duration(left), Tone.STRONG),
        f", at {clock_time(fires_at)}, unless the cut-over is confirmed",
    )  # fmt: skip


def _fires_at(fact: Fact) -> float | None:
    at, seconds = fact.data.get("fires_at"), fact.data.get("seconds")
    if isinstance(at, int | float):
        return float(at)
    return fact.at + float(seconds) if isinstance(seconds, int | float) else None


def _gpus(page: Page, facts: list[Fact], now: float) -> None:
    page.heading("GPUs")
    gpus = facts[-1].data.get("gpus") if facts else None
    if not isinstance(gpus, list) or not gpus:
        page.say(Span("none recorded", Tone.DIM))
        return
    page.table(
        ("#", "name", "memory", "", "load", "", "clock"),
        [_gpu(item) for item in gpus if isinstance(item, Mapping)],
        ("#", "memory", "load", "clock"),
    )
    page.say(Span(f"as of {_as_of(facts[-1], now)}", Tone.DIM))


def _gpu(gpu: Mapping[str, Any]) -> list[str | Span]:
    used, total, load = gpu.get("memory_used_mib"), gpu.get("memory_total_mib"), gpu.get("util")
    share = _share(used, total)
    clock = gpu.get("sm_clock_mhz")
    return [
        str(gpu.get("index", "?")),
        str(gpu.get("name", "?")),
        f"{mebibytes(used).removesuffix(' GiB')}/{mebibytes(total)}",
        Span(bar(share, BAR) if share is not None else "", Tone.WARN if (share or 0) > 0.95 else Tone.BUSY),
        f"{load:.0f} %" if _figure(load) else "–",
        Span(bar(load / 100, BAR) if _figure(load) else "", Tone.BUSY),
        f"{clock:.0f} MHz" if _figure(clock) else "–",
    ]


def _share(part: Any, whole: Any) -> float | None:
    return float(part) / float(whole) if _figure(part) and _figure(whole) and whole else None


def _figure(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _releases(page: Page, reading: Reading, host: str) -> None:
    page.heading("Releases")
    facts = reading.facts_of("release", host)
    if not facts:
        page.say(Span("none recorded", Tone.DIM))
        return
    current = current_release(reading, host)
    rows: list[list[str | Span]] = []
    for fact in facts:
        data = fact.data
        serving = current is data
        good = bool(data.get("known_good")) or data.get("state") in KNOWN_GOOD
        nodes = data.get("nodes")
        since = data.get("since")
        rows.append([
            Span("● serving", Tone.GOOD) if serving else _otherwise(data.get("state"), good),
            Span(str(data.get("id", fact.key)), Tone.STRONG if serving else Tone.PLAIN),
            str(data.get("algorithm", "?")) + (f" B={nodes}" if nodes else ""),
            Span("known good" if good else "", Tone.GOOD),
            date_time(float(since) if _figure(since) else fact.at),
        ])  # fmt: skip
    page.table(("now", "release", "algorithm", "proof", "since"), rows)


def _otherwise(state: object, good: bool) -> str:
    """The state of a release that does not serve, unless the column of proofs says the same."""
    return "" if state is None or (good and state in KNOWN_GOOD) else str(state)


def _drift(page: Page, facts: list[Fact]) -> None:
    page.heading("Drift")
    items = facts[-1].data.get("items") if facts else None
    if not facts:
        page.say(Span("not looked for yet", Tone.DIM))
    elif not isinstance(items, list) or not items:
        page.say(Span("none", Tone.GOOD), f" as of {clock_time(facts[-1].at)}")
    else:
        for item in items:
            text = f"{item.get('what', '?')}: {item.get('detail', '')}" if isinstance(item, Mapping) else str(item)
            page.say(Span("! ", Tone.WARN), text)


def _lock(page: Page, reading: Reading, now: float) -> None:
    page.heading("Lock")
    lease = reading.lease
    if lease is None:
        page.say("free: nobody may be changing this host")
        return
    silent = now > lease.expires_at
    page.pairs(
        ("held by", lease.owner),
        ("for run", lease.run_id or "–"),
        ("since", date_time(lease.acquired_at)),
        ("last sign", Span(f"{duration(now - lease.heartbeat_at)} ago", Tone.WARN if silent else Tone.PLAIN)),
        ("expires", f"{clock_time(lease.expires_at)} unless renewed"),
    )


def _as_of(fact: Fact, now: float) -> str:
    return f"{date_time(fact.at)}, {duration(now - fact.at)} ago"
