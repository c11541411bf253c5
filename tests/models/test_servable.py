"""A shipped target is served as it is, or in the form of another class where this SGLang lacks the hybrid's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models import servable as module
from models.servable import servable

MODELS = Path(__file__).resolve().parents[2] / "engine" / "models"


def test_this_sglang_has_the_class_of_the_hybrid(tmp_path: Path) -> None:
    for pair in ("tiny-dense", "tiny-hybrid"):
        assert servable(MODELS / pair / "target", tmp_path / "unused") == MODELS / pair / "target"
    assert not (tmp_path / "unused").exists()


def test_without_the_class_only_the_hybrid_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWN_CLASS", Path("srt", "models", "no_such_class.py"))
    assert servable(MODELS / "tiny-dense" / "target", tmp_path / "dense") == MODELS / "tiny-dense" / "target"
    found = servable(MODELS / "tiny-hybrid" / "target", tmp_path / "hybrid")
    assert found == tmp_path / "hybrid"
    assert json.loads((found / "config.json").read_text())["model_type"] == "qwen3_next"
