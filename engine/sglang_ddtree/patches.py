"""Runtime patches of SGLang functions; installed once, in the scheduler process, when DDTREE was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import compat

NAME = "DDTREE"
_MARK = "_sglang_ddtree"


def install() -> None:
    """Apply every patch; a second call changes nothing."""
    from .control import handle_switches

    widen_request_rows()
    drop_node_states()
    drop_state_reserve()
    refuse_unsupported_requests()
    handle_switches()


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """owner.name = wrap(owner.name), unless that was done before."""
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return
    replacement = wrap(original)
    setattr(replacement, _MARK, True)
    replacement.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def active() -> bool:
    """Whether this process serves DDTREE (several schedulers can live in one process)."""
    return compat.line().spec().speculative_algorithm == NAME


def _state_free() -> bool:
    from .config import DDTreeConfig

    spec = compat.line().spec()
    return DDTreeConfig.read(int(spec.speculative_dflash_block_size), int(spec.speculative_num_draft_tokens)).state_free


def widen_request_rows() -> None:
    """A decode step reserves two widths beyond the committed tokens, but a row of req_to_token has only
    context + 4 + T columns: near the context limit the write would leave the row, on a GPU into the next
    request's."""
    import sglang.srt.mem_cache.kv_cache_configurator as module

    def extra() -> int:
        return 4 + 2 * int(compat.line().spec().speculative_num_draft_tokens) if active() else 0

    replace(
        module,
        "get_req_to_token_extra_context_len",
        lambda original: compat.line().wrap_extra_context(original, extra),
    )


def drop_node_states() -> None:
    """Hybrids: build the state pool as without speculation, since no state per node is ever stored."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, **kwargs: Any) -> None:
            if active() and _state_free():
                kwargs["speculative_num_draft_tokens"] = None
            original(self, **kwargs)

        return __init__

    replace(MambaPool, "__init__", wrap)


def drop_state_reserve() -> None:
    """Hybrids: don't subtract memory for the states per node when the state pool is sized."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def _handle_max_mamba_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not (active() and _state_free()):
                return original(self, *args, **kwargs)
            with compat.line().without_spec_reserve():
                return original(self, *args, **kwargs)

        return _handle_max_mamba_cache

    replace(KVCacheConfigurator, "_handle_max_mamba_cache", wrap)


def request_refusal(req: Any) -> str | None:
    """One sentence where DDTREE can't serve a request, None where it can."""
    if req.return_hidden_states:
        return "DDTREE does not return hidden states: drop return_hidden_states."
    if req.sampling_params.min_p > 0 and compat.line().seeded():
        # SGLang's sampler has no seeded min-p and would end the server.
        return "DDTREE can't combine min_p with seeds (--enable-deterministic-inference): drop min_p."
    if getattr(req, "return_sampling_mask", False):
        return "DDTREE does not return sampling masks: drop return_sampling_mask or use DFLASH."
    return None


def refuse_unsupported_requests() -> None:
    """Requests linear DFLASH could serve and DDTREE can't are answered with the reason."""
    import sglang.srt.managers.scheduler as module

    def wrap(original: Callable[..., str | None]) -> Callable[..., str | None]:
        def validate_dflash_request(req: Any, enable_overlap: bool) -> str | None:
            sentence = request_refusal(req) if active() else None
            return sentence or original(req, enable_overlap)

        return validate_dflash_request

    replace(module, "validate_dflash_request", wrap)
