"""Entry point of the group ``sglang.srt.plugins``; SGLang calls ``register`` in each of its processes."""

from __future__ import annotations

from typing import Any

NAME = "DDTREE"


def before_hybrid_check(args: Any) -> None:
    """Make SGLang's arguments ready for its comparison of a hybrid's tracking interval with T."""
    from .algo import raise_track_interval

    if str(args.speculative_algorithm).upper() == NAME and args.speculative_num_draft_tokens:
        raise_track_interval(args, int(args.speculative_num_draft_tokens))


def register() -> None:
    """Make ``--speculative-algorithm DDTREE`` known; calling it again is harmless."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    from . import compat
    from .algo import DDTreeSpecAlgo

    if get_spec(NAME) is not None:
        return

    if compat.installed_version() in compat.LINES:  # an unknown one is refused when DDTREE is asked for, not here
        compat.line().watch_arguments(before_hybrid_check)

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DDTreeSpecAlgo)
    def worker_class(server_args: Any) -> type:
        # Heavy imports, wanted in the scheduler process only.
        if str(server_args.device) == "cuda":
            from .worker_gpu import GraphDDTreeWorker

            return GraphDDTreeWorker
        from .worker import DDTreeWorker

        return DDTreeWorker
