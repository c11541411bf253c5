"""What has to be put right in an inference environment before Transformers can be imported there."""

from __future__ import annotations

import importlib
import sys


def hide_broken_torchvision() -> bool:
    """Make Transformers do without a torchvision that cannot be imported; True when it was hidden.

    A torchvision built for CUDA raises beside a CPU torch, and Transformers then refuses text models too.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return False
    except Exception:  # the extension's registration raises RuntimeError, AttributeError or OSError
        for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
            del sys.modules[name]
        sys.modules["torchvision"] = None  # type: ignore[assignment]
        return True
    return False
