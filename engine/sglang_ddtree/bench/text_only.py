"""``sglang.launch_server`` for an architecture that could also see pictures, served as text.

SGLang has an argument that turns the pictures on, none that turns them off, and a checkpoint of made-up weights has no
picture processor to load.
"""

from __future__ import annotations

import argparse
import runpy
from typing import Any


def install() -> None:
    """From now on every ServerArgs made from a command line has multimodal off."""
    from sglang.srt.server_args import ServerArgs

    build = ServerArgs.from_cli_args.__func__

    def text_only(cls: type[Any], args: argparse.Namespace) -> Any:
        args.enable_multimodal = False
        return build(cls, args)

    ServerArgs.from_cli_args = classmethod(text_only)


if __name__ == "__main__":
    install()
    runpy.run_module("sglang.launch_server", run_name="__main__")
