"""The judgement between a default and its candidates, with clocks of the test's own and, for the checks, real kernels."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang_ddtree.bench import candidates
from sglang_ddtree.bench.judge import KEEP, Arm, Shape, Steps, judge, table
from sglang_ddtree.kernels.gdn_tiles import CANDIDATES
from sglang_ddtree.kernels.reference.prefix_attention import prefix_attention
from sglang_ddtree.selftest_data import HybridShape, Outcome

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on NaN that is put in on purpose


def clocks(times: dict[str, list[float]], asked: list[str]) -> Callable[[Steps], Callable[[], float]]:
    """A timer that reads out ``times`` by the name that an arm's only step returns, and notes who was asked."""

    def timer(steps: Steps) -> Callable[[], float]:
        name = str(steps[0]())
        values = itertools.cycle(times[name])
        return lambda: asked.append(name) or next(values)  # type: ignore[func-returns-value]

    return timer


def arm(name: str, error: float = 0.0) -> Arm:
    return Arm(name, [lambda: name], lambda: Outcome(error, 1e-3))


def verdict_of(
    times: dict[str, list[float]], *others: Arm, rounds: int = 5
) -> tuple[str, list[dict[str, Any]], list[str]]:
    asked: list[str] = []
    rows = list(judge(Shape("op", {"width": 3}, [arm("now"), *others]), clocks(times, asked), rounds))
    return rows[-1]["verdict"], rows, asked


def test_the_fastest_that_is_faster_in_most_rounds_is_proposed() -> None:
    times = {"now": [10.0], "a": [9.0], "b": [8.0], "lucky": [1.0, 30.0]}
    verdict, rows, asked = verdict_of(times, arm("a"), arm("b"), arm("lucky"))
    assert verdict == "b"
    assert [row["ratio"] for row in rows if row.get("kernel") == "b"] == [10 / 8]
    assert asked[:8] == ["now", "a", "b", "lucky", "lucky", "b", "a", "now"]  # in turn, and back


def test_a_gain_within_the_noise_keeps_the_default() -> None:
    assert verdict_of({"now": [10.0], "a": [9.9]}, arm("a"))[0] == KEEP
    assert verdict_of({"now": [10.0], "a": [11.0]}, arm("a"))[0] == KEEP


def test_what_is_wrong_is_neither_timed_nor_proposed() -> None:
    times = {"now": [10.0], "wrong": [1.0], "nan": [1.0], "right": [9.0]}
    others = (arm("wrong", 0.1), arm("nan", float("nan")), arm("right"))
    verdict, rows, asked = verdict_of(times, *others)
    assert verdict == "right"
    assert {"wrong", "nan"}.isdisjoint(asked)
    assert [row["kernel"] for row in rows if "error" in row] == ["wrong", "nan"]
    text = "\n".join(table(rows))
    assert "WRONG op wrong: wrong: 0.1 from the reference" in text
    assert "now 10.0" in text
    assert "right 9.0" in text


def test_an_arm_that_does_not_compile_hides_no_other() -> None:
    verdict, rows, _ = verdict_of({"now": [10.0], "a": [5.0]}, arm("unknown"), arm("a"))
    assert verdict == "a"
    assert [row["kernel"] for row in rows if "KeyError" in row.get("error", "")] == ["unknown"]


def test_every_verify_candidate_is_checked_at_the_size_it_is_timed_at() -> None:
    shape = candidates.verify_shape(17, 1, HybridShape(1, 1, 16, 128), "cpu")
    rows = list(judge(shape, lambda steps: lambda: 1.0, rounds=1))
    assert not [row for row in rows if "error" in row]
    timed = {row["kernel"] for row in rows if "us" in row}
    assert timed >= {config.label for config in CANDIDATES if config.rows <= 17}
    assert sum(row.get("default", False) for row in rows) == 1
    assert rows[-1]["verdict"] == KEEP


def test_attention_over_a_prefix_from_elsewhere_is_one_of_the_arms() -> None:
    def prefix(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        table: Any,
        lengths: Any,
        starts: Any,
        scale: float,
        parts: int,
    ) -> Any:
        assert starts.tolist() == list(range(0, q.shape[0] + 1, 17))
        return prefix_attention(q, k, v, table, lengths, scale)

    shape = candidates.attention_shape(17, 2, 40, prefix, (6, 2, 64), "cpu")
    rows = list(judge(shape, lambda steps: lambda: 1.0, rounds=1))
    assert not [row for row in rows if "error" in row]
    named = {row["kernel"].split(" + ")[0] for row in rows if "fa3" in row.get("kernel", "")}
    assert named == {"fa3 /auto", "fa3 /1"}


def test_rows_are_kept_after_every_shape_and_a_size_that_fails_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_memory() -> Shape:
        raise RuntimeError("out of memory")

    good = functools.partial(Shape, "op", {"width": 3}, [arm("now"), arm("a")])
    listed = [("op", {"width": 3}, good), ("op", {"width": 9}, no_memory)]
    monkeypatch.setattr(candidates, "shapes", lambda ops: iter(listed))
    kept: list[int] = []
    file = tmp_path / "rows.json"

    def keep(rows: list[dict[str, Any]]) -> None:
        kept.append(len(rows))
        candidates.write_result(file, "candidates", rows)

    rows = candidates.measure({"op"}, clocks({"now": [4.0], "a": [2.0]}, []), 3, keep)
    assert kept == [3, 4]
    assert json.loads(file.read_text())["rows"] == json.loads(json.dumps(rows))
    assert "out of memory" in rows[-1]["error"]


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert candidates.main([]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err
