"""The Triton kernels on a CPU: in Triton's interpreter, or through its compiler alone. Needs torch and triton, no SGLang.

The interpreter is chosen when a kernel's module is imported, so the two kinds of test run in processes of their own:
TRITON_INTERPRET=1 for everything but test_compile_matrix.py.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_ENGINE = str(Path(__file__).resolve().parents[2] / "engine")
if _ENGINE not in sys.path:
    sys.path.insert(0, _ENGINE)

if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
    collect_ignore_glob = ["test_*.py"]
elif os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore_glob = ["test_compile_matrix.py"]
else:
    collect_ignore_glob = [
        path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_compile_matrix.py"
    ]
