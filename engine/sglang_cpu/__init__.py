"""Runs the real, unmodified SGLang on a machine without a GPU.

Nothing happens on import.  ``activate()`` installs an import hook that patches SGLang's modules as they load;
the wheel's ``.pth`` file calls it in every process whose environment says ``SGLANG_USE_CPU_ENGINE=1``.
"""

from __future__ import annotations

__version__ = "0.1.0"


def activate() -> None:
    """Install the import hook in this process, once.  Does nothing where a CUDA device is visible."""
    from .hook import install

    install()
