"""Runs in the engine's environment (torch, transformers); elsewhere these tests are not collected."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for _folder in (TESTS.parent / "engine", TESTS / "baselines", TESTS / "engine"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    if os.environ.get("ORCHESTRATE_FULL") != "1":
        collect_ignore_glob = ["test_all_budgets.py"]

    if importlib.util.find_spec("sglang") is None:
        collect_ignore_glob = ["test_engine.py", "test_all_budgets.py"]
    else:
        # The engine's own tests may follow in this process and need torchvision mended, not hidden.
        from sglang_cpu.environment import VARIABLES

        for _name, _value in VARIABLES.items():
            os.environ.setdefault(_name, _value)

        import sglang_cpu

        sglang_cpu.activate()

    from baselines.environment import hide_broken_torchvision

    hide_broken_torchvision()
    torch.set_num_threads(1)
