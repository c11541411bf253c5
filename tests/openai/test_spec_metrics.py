"""The table of key names, and the figures made of counters."""

from __future__ import annotations

import pytest

from orchestrator.openai.metrics_text import by_label, read_metrics
from orchestrator.openai.spec_metrics import TABLE, SpecCounts, chain_length_between, names_for, parse_version

EXPOSITION = """# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{tp="0"} %d
sglang:spec_verify_calls_total{tp="1"} %d
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{tp="0"} %d
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{tp="0"} %d
"""


@pytest.mark.parametrize(
    ("version", "row"),
    [
        ("0.5.16", (0, 5, 16)),
        ("0.5.19", (0, 5, 16)),
        ("0.5.20.post1", (0, 5, 20)),
        ("0.5.23+cu130", (0, 5, 23)),
        ("0.6", (0, 5, 23)),
        ("0.4.9", (0, 5, 16)),
    ],
)
def test_each_version_finds_its_row(version: str, row: tuple[int, int, int]) -> None:
    assert names_for(version) is TABLE[row]


def test_old_aliases_count_only_where_the_version_has_them() -> None:
    meta = {"spec_verify_ct": 10, "spec_accepted_drafts": 25}
    assert SpecCounts.of_request(meta, 36, names_for("0.5.20")).accept_length == 3.5
    assert SpecCounts.of_request(meta, 36, names_for("0.5.23")).accept_length is None


def test_tokens_per_step_leaves_out_the_token_of_the_prefill() -> None:
    counts = SpecCounts.of_request({"spec_verify_ct": 9, "spec_num_correct_drafts": 54}, 64, names_for("0.5.20"))
    assert counts.tokens_per_step == 7.0
    assert counts.accept_length == 7.0
    assert SpecCounts.of_request({}, 64, names_for(None)).tokens_per_step is None


def test_sums_drop_unknown_counts() -> None:
    total = SpecCounts.total([SpecCounts(10, 30, 20), SpecCounts(30, 60, None), SpecCounts()])
    assert (total.verify_steps, total.decoded, total.correct_drafts) == (40, 90, None)
    assert SpecCounts.total([SpecCounts(1, 2, 3), SpecCounts(1, 2, 3)]).correct_drafts == 6


def test_the_chain_of_a_row_is_made_of_life_time_means() -> None:
    names = names_for("0.5.20")
    before = {"ddtree_accept_length_chain": 3.0, "ddtree_depth_hits": 100.0}
    after = {"ddtree_accept_length_chain": 3.5, "ddtree_depth_hits": 200.0}
    assert chain_length_between(before, after, names) == pytest.approx(4.0)
    assert chain_length_between({}, before, names) == 3.0
    assert chain_length_between(before, before, names) is None
    assert chain_length_between({}, {}, names) is None


def test_counter_differences_not_life_time_values() -> None:
    before = read_metrics(EXPOSITION % (100, 5, 900, 40))
    after = read_metrics(EXPOSITION % (108, 7, 962, 42))
    counts = SpecCounts.between(before, after, names_for("0.5.20"))
    assert counts is not None
    assert (counts.verify_steps, counts.decoded) == (10, 60)
    assert counts.tokens_per_step == 6.0
    assert SpecCounts.between({}, {}, names_for("0.5.20")) is None


def test_labels_can_be_told_apart() -> None:
    text = EXPOSITION % (1, 2, 3, 4)
    assert by_label(text, "sglang:spec_verify_calls_total", "tp") == {"0": 1.0, "1": 2.0}


def test_versions_with_odd_parts() -> None:
    assert [parse_version(v) for v in ("1", "0.5.20rc1", "x.y")] == [(1, 0, 0), (0, 5, 20), (0, 0, 0)]
