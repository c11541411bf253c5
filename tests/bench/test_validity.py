"""Each rule fires when it should, alone, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.gpu import FAMILY_COMMAND, PROCESS_COMMAND, QUERY_COMMAND, family, parse_sample, read_sample
from orchestrator.bench.rows import HostSample, ids_hash, loop_share, row_from_json
from orchestrator.bench.validity import RULES, judge
from tests.bench.rowkit import row

FIRES: list[tuple[str, dict[str, Any]]] = [
    ("request-failed", {"status": 500, "error": "out of memory"}),
    ("request-failed", {"error": "reset"}),
    ("request-failed", {"terminated": False}),
    ("request-failed", {"requests": ()}),
    ("usage-missing", {"tokens": 0}),
    ("usage-missing", {"tokens": None}),
    ("usage-wrong", {"tokens": 101}),
    ("usage-wrong", {"tokens": 100, "received": 60}),
    ("output-short", {"tokens": 97}),
    ("repetition-loop", {"loop_share": 0.51}),
    ("no-speculation", {"verify_steps": 0}),
    ("no-speculation", {"verify_steps": -4}),
    ("graphs-off", {"graphs": False}),
    ("graphs-off", {"other_graphs": False}),
    ("unlike-arms", {"engine": {"version": "0.5.20"}, "other_engine": {"version": "0.5.23"}}),
    ("server-restarted", {"identity_after": "b"}),
    ("clocks-throttled", {"host_after": HostSample(throttle_reasons=("sw_thermal_slowdown",))}),
    ("foreign-gpu", {"host_before": HostSample(foreign_processes=("python (pid 7)",))}),
    ("foreign-requests", {"foreign_requests": 1}),
    ("live-load", {"live_load": 1.0}),
    ("warm-up-overlap", {"warm_up_hashes": ("h",)}),
    ("cache-hit", {"cached_tokens": 11}),
    ("client-saturated", {"client_delay_p99_s": 0.031}),
    ("client-saturated", {"client_delay_p99_s": 0.0051, "e2e_s": 0.1}),
    ("not-lossless", {"lossless": False}),
]
QUIET: list[dict[str, Any]] = [
    {},
    {"tokens": 98},
    {"loop_share": 0.5},
    {"verify_steps": 0, "speculative": False},
    {"graphs": None, "other_graphs": None},
    {"host_before": HostSample(throttle_reasons=("gpu_idle",)), "host_after": HostSample()},
    {"foreign_requests": None, "live_load": None, "client_delay_p99_s": None, "lossless": None},
    {"live_load": 2.0, "max_live_load": 2.0},
    {"engine": {"version": "0.5.20", "dtype": "float32"}, "other_engine": {"version": "0.5.20", "tp_size": "1"}},
    {"warm_up_hashes": ("other",)},
    {"received": 101},
    {"cached_tokens": 10},
    {"cached_tokens": None, "prompt_tokens": None},
    {"client_delay_p99_s": 0.029},
    {"client_delay_p99_s": 0.2, "client_delay_limit_s": 0.25},
]


@pytest.mark.parametrize(("rule", "change"), FIRES)
def test_the_rule_fires_alone(rule: str, change: dict[str, Any]) -> None:
    judged = judge(row(**change))
    assert [f.rule for f in judged.findings] == [rule]
    assert judged.findings[0].reason
    assert not judged.valid


@pytest.mark.parametrize("change", QUIET)
def test_nothing_fires_on_a_sound_row(change: dict[str, Any]) -> None:
    assert judge(row(**change)).findings == ()


def test_every_rule_is_tested_and_says_what_it_guards_against() -> None:
    assert {r.id for r in RULES} == {rule for rule, _ in FIRES}
    assert all(r.guards_against for r in RULES)


def test_judging_again_replaces_findings() -> None:
    twice = judge(judge(row(tokens=5)))
    assert [f.rule for f in twice.findings] == ["output-short"]


def test_a_row_survives_json() -> None:
    original = judge(row(host_before=HostSample(power_w=70.0), tokens=5))
    data = original.to_json()
    assert row_from_json(data) == original
    assert data["valid"] is False
    assert data["tokens_per_step"] == pytest.approx(4 / 25)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(6, 20), st.integers(0, 30))
def test_loops_are_seen_wherever_they_begin(period: list[int], times: int, lead: int) -> None:
    start = list(range(1000, 1000 + lead))
    ids = start + period * times
    assert loop_share(ids) >= len(period) * times / len(ids) - 1e-9
    assert loop_share(start) == 0.0


def test_outputs_without_a_loop_have_none() -> None:
    assert loop_share(list(range(100))) == 0.0
    assert loop_share([]) == 0.0
    assert loop_share([1, 2, 3] * 3 + [9]) == 0.0
    assert ids_hash([]) == ""
    assert ids_hash([1, 2]) != ids_hash([12])


def test_nvidia_smi_output_is_read() -> None:
    query = "1980, 412.5, 61, 70000, 0x0000000000000004\n1755, 300.0, 72, 60000, 0x0000000000000021\n"
    sample = parse_sample(query, "100, python\n200, /usr/bin/trainer\n", own_pids={100})
    assert (sample.sm_clock_mhz, sample.power_w, sample.temperature_c, sample.memory_used_mib) == (
        1755,
        712.5,
        72,
        130000,
    )
    assert sample.throttle_reasons == ("gpu_idle", "sw_power_cap", "sw_thermal_slowdown")
    assert sample.foreign_processes == ("/usr/bin/trainer (pid 200)",)


def test_a_machine_without_gpu_gives_an_empty_sample() -> None:
    assert parse_sample("", "", ()) == HostSample()
    unknown = parse_sample("[N/A], [N/A], 50, [N/A], [N/A]\n", "No running processes found", ())
    assert unknown == HostSample(temperature_c=50)


def test_workers_of_a_server_under_test_are_not_foreign() -> None:
    listing = "    1       0\n  100       1\n  150     100\n  160     150\n  200       1\n"
    assert family(listing, [100]) == {100, 150, 160}
    answers = {
        QUERY_COMMAND: "1980, 400, 60, 70000, 0x0\n",
        PROCESS_COMMAND: "160, sglang::scheduler\n200, trainer\n",
        FAMILY_COMMAND: listing,
    }
    sample = read_sample(answers.get, [100])
    assert sample is not None
    assert sample.foreign_processes == ("trainer (pid 200)",)
    assert read_sample({}.get, [100]) is None
