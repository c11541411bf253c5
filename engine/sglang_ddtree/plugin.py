"""Entry point of the group ``sglang.srt.plugins``; SGLang calls ``register`` in each of its processes."""

from __future__ import annotations

from typing import Any

NAME = "DDTREE"


def register() -> None:
    """Make ``--speculative-algorithm DDTREE`` known; calling it again is harmless."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    from .algo import DDTreeSpecAlgo

    if get_spec(NAME) is not None:
        return

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DDTreeSpecAlgo)
    def worker_class(server_args: Any) -> type:
        # Heavy imports, wanted in the scheduler process only.
        if str(server_args.device) == "cuda":
            from .worker_gpu import GraphDDTreeWorker

            return GraphDDTreeWorker
        from .worker import DDTreeWorker

        return DDTreeWorker
