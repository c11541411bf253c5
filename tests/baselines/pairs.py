"""The shipped pairs, loaded once, and small helpers of these tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from baselines.draft import DraftModel
from baselines.target import TargetModel

MODELS = Path(__file__).resolve().parents[2] / "engine" / "models"
PAIRS = ("tiny-dense", "tiny-hybrid")
CPU = torch.device("cpu")


@cache
def load(name: str) -> tuple[TargetModel, DraftModel]:
    folder = MODELS / name
    return TargetModel(folder / "target", CPU, torch.float32), DraftModel(folder / "draft", CPU, torch.float32)
