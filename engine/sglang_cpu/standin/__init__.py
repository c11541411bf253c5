"""PyTorch stand-in for the CPU build of ``sgl_kernel`` (which needs AMX).

Holds the functions SGLang's CPU path calls; importing it also defines the ``torch.ops.sgl_kernel.*_cpu`` ops.
Any other name imports and raises NotImplementedError when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from . import attention, gdn, norms, registry
from .cache_locs import (  # noqa: F401
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)

__version__ = "9.9.9+torch"  # above every minimum SGLang asks for

registry.define(attention, gdn, norms)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no CPU stand-in: this feature of SGLang needs a GPU (or an AMX CPU)."
        )

    missing.__name__ = name
    return missing
