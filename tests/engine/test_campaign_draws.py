"""How the campaign judges sampled answers: nuclei whose edge is near, and where a seeded draw was a tie."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sglang_ddtree.bench import campaign_draws as draws


class Model:
    """Says the log-probabilities of a table by the last token of what it is asked."""

    def __init__(self, table: dict[int, dict[int, float]]) -> None:
        self.table, self.asked = table, 0

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.asked += 1
        row = sorted(((math.log(p), token) for token, p in self.table[body["input_ids"][-1]].items()), reverse=True)
        return {"meta_info": {"output_top_logprobs": [row]}}


def test_a_nucleus_whose_edge_one_rounding_moves_is_not_asked_for() -> None:
    """The numbers of an answer on an H200 that had a second token at top-p 0.8 in one arm only."""
    model = Model({1: {2: 0.82, 3: 0.1, 1: 0.08}, 2: {4: 0.8015, 3: 0.12, 1: 0.0785}, 3: {4: 1.0}, 4: {4: 1.0}})
    assert draws._clear_top_p(model, [1], 1.0, (0.8, 0.75)) == 0.75  # type: ignore[arg-type]
    far = Model({1: {2: 0.6, 3: 0.4}, 2: {2: 0.5, 3: 0.5}, 3: {2: 1.0}})
    assert draws._clear_top_p(far, [1], 1.0, (0.8, 0.75)) == 0.8  # type: ignore[arg-type]


def test_the_least_bad_nucleus_is_taken_where_none_is_clear() -> None:
    model = Model({1: {1: 0.79, 2: 0.21}, 2: {1: 0.755, 2: 0.245}})  # 0.79 and 0.755
    assert draws._clear_top_p(model, [1], 1.0, (0.8, 0.75)) == 0.8  # type: ignore[arg-type]


def test_paths_too_rare_to_matter_are_not_followed() -> None:
    model = Model({1: {1: 0.98, 2: 0.02}})  # nothing is known after 2
    assert list(draws._edges(model, [1], 1.0)) == pytest.approx([0.98] * draws.TOKENS)  # type: ignore[arg-type]
    assert model.asked == draws.TOKENS


def test_a_tail_too_fine_to_show_is_no_edge() -> None:
    model = Model({1: {1: 0.81, 2: 0.184, 3: 0.006}, 2: {1: 1.0}})
    assert 0.994 not in [round(edge, 3) for edge in draws._edges(model, [1], 1.0)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("top_k", "noise", "gap"),
    [
        (-1, [0.0, 0.5], 0.1),  # 0.5 nats apart, the noise makes up for 0.4 of them
        (-1, [0.0, -2.0], 2.1),  # the reference's own by far: no rounding explains another
        (40, [0.0, -2.0], 0.5),  # by rank: that the two changed places would explain it, were they nearer
        (40, [0.0, 0.625], 0.0),
    ],
)
def test_a_draw_is_a_tie_where_logits_and_noise_leave_it_open(
    monkeypatch: pytest.MonkeyPatch, top_k: int, noise: list[float], gap: float
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(draws, "seeded_noise", lambda seed, position, columns: asked.append(columns) or noise)
    ranked = [(-0.5, 70), (-1.0, 30), (-4.0, 50)]
    setting = {"temperature": 0.8, "sampling_seed": 3, "top_k": top_k}
    assert draws.draw_gap(ranked, 70, 30, setting, 12) == pytest.approx(gap)
    assert asked == [[0, 1] if top_k > 0 else [70, 30]]
    assert draws.draw_gap(ranked, 70, 31, setting, 12) > 90  # not among the likeliest
