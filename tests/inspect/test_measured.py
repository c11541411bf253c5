"""Oracle baselines fill in what a tree gains for exactly the pair they were made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.transport.base import Transport
from tasks.inspecting import Scope, measured, model_part
from tasks.inspecting.advice import starting_budget
from tasks.inspecting.measured import gain_at, measured_for
from tests.inspect.conftest import LocalTransport

MODELS = Path(__file__).parents[2] / "engine" / "models"


def pair(transport: Transport, folder: Path) -> dict[str, object]:
    scope = Scope("here", target=str(folder / "target"), draft=str(folder / "draft"))
    return model_part.read(transport, scope, None)[2]


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-hybrid"])
def test_the_shipped_pairs_have_a_measured_gain(name: str, transport: LocalTransport) -> None:
    model = pair(transport, MODELS / name)
    baseline = json.loads((measured.BASELINES / f"{name}.json").read_text())
    rates = baseline["summary"]["non_repetitive"]["tokens_per_step"]
    gains = model["measured_gain"]
    assert set(gains) == {str(budget) for budget in baseline["budgets"]}
    assert gains["64"] == pytest.approx(rates["64"] / rates["chain"] - 1, abs=1e-3)
    assert model["measured_on"].endswith(f"prompts that do not loop, oracle baseline {name}")


def test_other_weights_have_none(transport: LocalTransport, tmp_path: Path) -> None:
    shutil.copytree(MODELS / "tiny-dense", tmp_path / "pair")
    weights = tmp_path / "pair" / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    model = pair(transport, tmp_path / "pair")
    assert model["draft"] is not None
    assert (model["measured_gain"], model["measured_on"]) == (None, None)


def test_loops_count_only_when_there_is_nothing_else(tmp_path: Path) -> None:
    baseline = {
        "format": "ddtree-baseline", "target": {"sha256": "t"}, "draft": {"sha256": "d"},
        "summary": {
            "all": {"prompts": 2, "tokens_per_step": {"chain": 4.0, "16": 5.0}},
            "non_repetitive": {"prompts": 0, "tokens_per_step": {}},
        },
    }  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps(baseline))
    (tmp_path / "broken.json").write_text("{")
    found = measured_for("t", "d", tmp_path)
    assert found is not None
    assert (found.gain, found.on) == ({"16": 0.25}, "2 prompts, oracle baseline one")
    assert measured_for("t", "x", tmp_path) is None
    assert measured_for("t", None, tmp_path) is None


def test_a_wider_tree_gains_no_less() -> None:
    gains = {"16": 0.1, "64": 0.3}
    assert [gain_at(gains, n) for n in (15, 16, 31, 64, 1024)] == [None, 0.1, 0.1, 0.3, 0.3]


def test_the_measured_gain_chooses_the_budget() -> None:
    rows = [{"nodes": n, "fits": True} for n in (15, 63, 127)]
    steps = [{"nodes": n, "break_even_gain": even} for n, even in ((15, 0.0), (63, 0.25), (127, 0.5))]
    document = {"budgets": rows, "predictions": steps, "model": {"measured_gain": None}}
    assert starting_budget(document) == 15  # 25 % is more than trees are expected to gain
    document["model"] = {"measured_gain": {"32": 0.3}}
    assert starting_budget(document) == 63
