"""The environment variables and default arguments a CPU server needs."""

from __future__ import annotations

import os
import site
from pathlib import Path

PACKAGE = Path(__file__).parent

VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",  # SGLang's own switch for its CPU path, and ours for the patches
    "HF_HUB_OFFLINE": "1",  # models are local folders
    "OMP_NUM_THREADS": "1",  # tiny models run faster on one thread, and results don't depend on the split
    "SGLANG_MAMBA_CONV_DTYPE": "float32",  # else the convolution state of a hybrid is rounded to bfloat16
}

# Arguments that hold for every CPU server; one given by the caller wins.
ARGUMENTS: dict[str, str | None] = {
    "--device": "cpu",
    "--dtype": "float32",
    "--attention-backend": "intel_amx",
    "--disable-overlap-schedule": None,
    "--skip-server-warmup": None,
    "--sleep-on-idle": None,  # else an idle scheduler spins on a whole core
    "--max-total-tokens": "8192",
    "--max-running-requests": "8",
    "--max-mamba-cache-size": "64",
}


def variables() -> dict[str, str]:
    """This process's environment plus what SGLang on CPU needs; OMP_NUM_THREADS is kept where it is set."""
    env = {**VARIABLES, **os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    if not installed():
        extra = [str(PACKAGE / "bootstrap"), str(PACKAGE.parent)]
        env["PYTHONPATH"] = os.pathsep.join(extra + [p for p in [env.get("PYTHONPATH")] if p])
    return env


def installed() -> bool:
    """True when Python runs the wheel's .pth file at start, which it does in site-packages folders only."""
    return any((Path(folder) / "sglang_cpu.pth").is_file() for folder in site.getsitepackages())


def with_defaults(args: list[str]) -> list[str]:
    """``args`` with the CPU defaults in front, leaving out those the caller gave."""
    given = {a.split("=", 1)[0] for a in args if a.startswith("--")}
    front: list[str] = []
    for name, value in ARGUMENTS.items():
        if name not in given:
            front += [name] if value is None else [name, value]
    return front + args
