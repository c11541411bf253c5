"""The run report, plots, exports, imports and the comparison of two runs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.bench.load import Level, LoadResult
from orchestrator.bench.metrics import measure, summarise
from orchestrator.bench.result import SweepResult, sweep_from_json
from orchestrator.bench.rows import Row
from orchestrator.bench.summary import pairs_of, summarise_arm
from orchestrator.bench.validity import judge
from orchestrator.bench.verdict import decide
from orchestrator.bench.watch import compare, regressed
from orchestrator.errors import UsageError
from orchestrator.openai.records import Completion, Delivery
from orchestrator.openai.smoke import CheckResult
from orchestrator.report.export import arms_csv, rows_csv, sweep_json
from orchestrator.report.html import RunReport, TaskLine, plots_of, render_report
from orchestrator.report.plots import points_of_rows, stage_times, sweep_plots
from orchestrator.report.sglang_results import read_serving_results
from tests.bench.rowkit import pair_rows

NOISE = [0.97, 1.0, 1.03, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]


def sweep(scale: float = 1.0, broken: bool = True) -> SweepResult:
    rows: list[Row] = []
    for budget, ratio in ((15, 1.1), (64, 1.4)):
        rows += pair_rows([ratio * n for n in NOISE], budget)
    rows = [replace(r, wall_s=r.wall_s * scale) for r in rows]
    if broken:
        rows += [judge(replace(r, identity_after="<new>")) for r in pair_rows([9.0], 15, first=50)]
    pairs = pairs_of(rows)
    arms = tuple(summarise_arm([p for p in pairs if p.tree.budget == b], 0.02, 2) for b in (15, 64))
    return SweepResult(tuple(rows), arms, decide(arms, 0.02), {"margin": 0.02}, {512: "no memory"})


def load_result(concurrency: int) -> LoadResult:
    deliveries = [Delivery(0.1, 1, 1), Delivery(0.3, 4, 5)]
    done = Completion(
        status=200, terminated=True, completion_tokens=5, ended_at_s=0.3, deliveries=deliveries, prompt_tokens=2
    )
    return LoadResult(Level(concurrency=concurrency), summarise([measure(done)], 0.3), (done,), 0.001)


def full_report() -> RunReport:
    return RunReport(
        title="Deploy <DDTree>",
        run_id="r1",
        made_at="2026-11-29",
        facts={"host": "pro6000 & friends"},
        tasks=[TaskLine("Decide", "high", "completed", 1.5, "as measured")],
        checks=[CheckResult("chat", None, "no template", "chat works", 0.1, "no template")],
        sweep=sweep(),
        loads={"linear": [load_result(1), load_result(4)]},
        changes=compare(sweep(), sweep(1.5)),
        compared_with="known-good 3",
        extra_plots=[stage_times({"linear": {"draft": 2.0, "verify": 9.0}})],
    )


class Outline(HTMLParser):
    """Checks that tags nest, and collects links, headings and text."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(" ".join(data.split()))


def test_the_report_is_one_file_that_nests_escapes_and_names_every_finding() -> None:
    text = render_report(full_report())
    outline = Outline(text)
    assert all(link.startswith("data:image/svg+xml;base64,") for link in outline.links)
    assert "http" not in text.replace("http://www.w3.org", "").split("<body>")[0]
    assert len(outline.links) == len(plots_of(full_report())) == 6
    words = " ".join(outline.words)
    for expected in ("Deploy <DDTree>", "pro6000 & friends", "Adopt", "server-restarted", "not offered", "known-good 3",
                     "Budget 512 was given up: no memory.", "as measured", "worse"):  # fmt: skip
        assert expected in words
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_an_empty_report_has_only_its_title() -> None:
    outline = Outline(render_report(RunReport("Nothing yet", "r2", "now")))
    assert outline.links == []
    assert "Nothing yet" in outline.words


def test_plots_are_pictures_with_words_and_repeat_exactly() -> None:
    first, second = plots_of(full_report()), plots_of(full_report())
    for plot, again in zip(first, second, strict=True):
        assert plot.png.startswith(b"\x89PNG")
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")
        assert plot.alt
        assert plot.svg == again.svg
    assert "budget 64 at load 1: 1.400" in first[0].alt


def test_a_sweep_at_several_loads_makes_a_throughput_latency_curve() -> None:
    rows = pair_rows([1.2] * 4) + [replace(r, wall_s=r.wall_s / 3) for r in pair_rows([1.1] * 4, concurrency=4)]
    curves = points_of_rows([*rows, *pair_rows([1.3] * 4, budget=64)])
    assert {name: [(p.load, round(p.tok_s)) for p in points] for name, points in curves.items()} == {
        "linear": [("1", 100), ("4", 300)],
        "tree 15": [("1", 120), ("4", 330)],
    }
    pairs = pairs_of(rows)
    arms = [summarise_arm([p for p in pairs if p.tree.concurrency == c], 0.02, 1) for c in (1, 4)]
    assert "throughput-latency" in [plot.name for plot in sweep_plots(rows, arms, 0.02, 15)]
    assert points_of_rows(sweep().rows) == {}


def test_a_sweep_without_valid_pairs_has_no_plots() -> None:
    rows = [judge(replace(r, lossless=False)) for r in pair_rows([1.2] * 3)]
    arms = (summarise_arm(pairs_of(rows), 0.02, 1),)
    report = RunReport("t", "r", "now", sweep=SweepResult(tuple(rows), arms, decide(arms, 0.02)))
    assert plots_of(report) == []
    assert "not-lossless" in render_report(report)


def test_csv_holds_every_row_and_arm() -> None:
    result = sweep()
    rows = list(csv.DictReader(io.StringIO(rows_csv(result.rows))))
    assert len(rows) == len(result.rows) == 42
    assert rows[-1]["findings"] == "server-restarted"
    assert float(rows[1]["tok_s"]) == pytest.approx(result.rows[1].tok_s)
    arms = list(csv.DictReader(io.StringIO(arms_csv(result.arms))))
    assert [a["budget"] for a in arms] == ["15", "64"]
    assert float(arms[1]["ci95_low"]) > 1.3


def test_a_sweep_survives_json_and_bad_documents_are_refused() -> None:
    result = sweep()
    data = json.loads(sweep_json(result))
    assert sweep_from_json(data) == result
    for bad, word in (({}, "no 'rows'"), (data | {"verdict": {"decision": "maybe"}}, "decision")):
        with pytest.raises(UsageError, match=word):
            sweep_from_json(bad, "last.json")


def test_the_watch_sees_a_fall_beyond_the_margin_only() -> None:
    slower = regressed(compare(sweep(), sweep(1.1)))
    assert {(c.arm, c.figure) for c in slower} == {("linear", "speed"), ("tree 15", "speed"), ("tree 64", "speed")}
    assert slower[0].ratio == pytest.approx(1 / 1.1)
    assert regressed(compare(sweep(), sweep(0.8))) == []
    assert regressed(compare(sweep(), sweep(1.005))) == []


def test_the_watch_compares_common_prompts_only() -> None:
    other = replace(sweep(), rows=tuple(replace(r, prompt_hashes=("z",)) for r in sweep().rows))
    assert compare(sweep(), other) == []


SERVING = {
    "request_rate": float("inf"), "max_concurrency": 4, "completed": 8, "duration": 2.0, "total_output_tokens": 512,
    "output_throughput": 256.0, "median_ttft_ms": 20.0, "p99_ttft_ms": 30.0, "median_tpot_ms": 2.5, "p99_tpot_ms": 4.0, "median_itl_ms": 2.4,
    "median_e2e_latency_ms": 180.0, "accept_length": 3.5,
}  # fmt: skip


def test_results_of_sglangs_benchmark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    path.write_text(json.dumps(SERVING) + "\n" + json.dumps(SERVING | {"request_rate": 2.0}) + "\n")
    closed, opened = read_serving_results(path)
    assert (closed.load, opened.load) == ("4 at once", "2 requests/s")
    assert (closed.tok_s, closed.ttft_p50_s, closed.itl_p50_s) == (256.0, 0.02, 0.0025)
    assert "4 at once" in render_report(RunReport("t", "r", "now", imported=[closed]))


@pytest.mark.parametrize(("content", "word"), [("", "no result"), ("{", "line 1"), ("{}", "line 1"), ("[]", "line 1")])
def test_other_files_are_refused(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "result.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=word):
        read_serving_results(path)
