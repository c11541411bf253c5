"""Put on PYTHONPATH by ``python -m sglang_cpu launch`` when the package runs from source, without its .pth file."""

import os

if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    import sglang_cpu

    sglang_cpu.activate()
