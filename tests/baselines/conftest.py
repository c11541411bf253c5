"""Runs in the engine's environment (torch, transformers); elsewhere these tests are not collected."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "engine"
for _folder in (str(ENGINE), str(Path(__file__).parent)):
    if _folder not in sys.path:
        sys.path.insert(0, _folder)

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch
    from baselines.environment import hide_broken_torchvision

    hide_broken_torchvision()
    torch.set_num_threads(1)
