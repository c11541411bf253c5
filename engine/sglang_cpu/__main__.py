"""``python -m sglang_cpu launch …`` starts SGLang's server without a GPU; ``doctor`` says what is patched."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

from . import __version__
from .environment import variables, with_defaults
from .patches import PATCHES
from .versions import cuda_visible, refusal, sglang_version

USAGE = "usage: python -m sglang_cpu {launch [sglang arguments] | doctor | version}"


def main(argv: list[str]) -> int:
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    if command == "launch":
        return launch(rest)
    if command == "doctor":
        return doctor()
    if command == "version":
        print(__version__)
        return 0
    print(USAGE, file=sys.stderr)
    return 2


def launch(args: list[str]) -> int:
    """Replace this process by ``sglang.launch_server`` with the variables and arguments a CPU needs."""
    sentence = refusal()
    if cuda_visible():
        sentence = "sglang_cpu launch is for machines without a GPU, and one is visible: use sglang.launch_server."
    if sentence:
        print(sentence, file=sys.stderr)
        return 2
    return _replace_process([sys.executable, "-W", "ignore", "-m", "sglang.launch_server", *with_defaults(args)])


def _replace_process(command: list[str]) -> NoReturn:
    os.execve(sys.executable, command, variables())


def doctor() -> int:
    """Import every patched module and print what was patched and why; exit 1 if a patch did not apply."""
    print(f"sglang_cpu {__version__}, sglang {sglang_version()}, CUDA device visible: {cuda_visible()}")
    if sentence := refusal():
        print(sentence)
        return 2
    if cuda_visible():
        print("not active: a CUDA device is visible")
        return 0
    os.environ.update({k: v for k, v in variables().items() if k != "PYTHONPATH"})
    from .hook import finder, install

    install()
    hook = finder()
    assert hook is not None
    failures = 0
    for patch in [p for p in PATCHES if sglang_version() in p.versions]:
        try:
            importlib.import_module(patch.module)
            state = "patched" if patch in hook.applied else "NOT PATCHED"
        except Exception as error:  # a finding to report, whatever it is
            state = f"FAILED ({type(error).__name__}: {error})"
        failures += state != "patched"
        print(f"{state}: {patch.module} {patch.target}\n    {patch.reason}")
    import sgl_kernel

    print(f"stand-in: sgl_kernel {sgl_kernel.__version__} from {sgl_kernel.__file__}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
