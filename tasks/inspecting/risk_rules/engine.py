"""Rules about what this engine and its arguments do with a tree."""

from __future__ import annotations

from tasks.inspecting.risks import Document, hybrid, option, part, rule


@rule(
    "no-tree-backend",
    "blocker",
    consequence="the verify step can't see the tree's mask: wrong text without an error",
    what_to_do="choose an architecture and attention backend that the list under tree_backends names",
)
def no_tree_backend(d: Document) -> str | None:
    if part(d, "sglang", "tree_backends") or not part(d, "sglang", "version") or part(d, "kind") == "folder":
        return None
    return f"no attention backend of this package verifies trees on {part(d, 'hardware', 'gpu', 'arch') or 'this GPU'}"


@rule(
    "chain-backend",
    "high",
    consequence="the backend in force refuses or ignores a tree mask; arms on different backends can't be compared",
    what_to_do="both arms of the benchmark run on a tree backend; linear is measured there again",
)
def chain_backend(d: Document) -> str | None:
    refusal = part(d, "sglang", "backend_refusal")
    return str(refusal) if refusal else None


@rule(
    "chain-gates",
    "medium",
    consequence="a tree that leaves speculative_eagle_topk at 1 gets chain-layout windows and masks: silently wrong state",
    what_to_do="the plug-in sets the gate; the self-test compares committed state with a sequential replay",
)
def chain_gates(d: Document) -> str | None:
    gates = part(d, "sglang", "gates") or []
    return "; ".join(gates) if gates and hybrid(d) else None


@rule(
    "replayssm-spec",
    "blocker",
    consequence="its verify kernel is strictly causal: siblings would see each other",
    what_to_do="remove the flag from the clone's arguments",
)
def replayssm(d: Document) -> str | None:
    return next(
        (
            f"the service runs with {n}"
            for n in ("enable_linear_replayssm_spec", "enable_gdn_replayssm_spec")
            if option(d, n)
        ),
        None,
    )


@rule(
    "other-recurrence",
    "blocker",
    consequence="only Gated DeltaNet layers have a tree form in this engine",
    what_to_do="keep linear for this model",
)
def other_recurrence(d: Document) -> str | None:
    name = part(d, "model", "target", "other_recurrence")
    return f"the target has {name} layers" if name else None


@rule(
    "parallelism",
    "blocker",
    consequence="the plug-in has no tree for this layout",
    what_to_do="run the canary with pipeline size 1, without DP attention and without prefill/decode disaggregation",
)
def parallelism(d: Document) -> str | None:
    pp = option(d, "pp_size")
    if pp not in (None, 1, "1"):
        return f"pp_size is {pp}"
    if option(d, "enable_dp_attention") is True:
        return "DP attention is on"
    mode = option(d, "disaggregation_mode")
    return f"disaggregation_mode is {mode}" if mode not in (None, "null", "none") else None


@rule(
    "fp8-kv",
    "medium",
    consequence="published pairs lost acceptance with an 8-bit KV cache",
    what_to_do="compare the acceptance of both KV types before blaming the tree",
)
def fp8_kv(d: Document) -> str | None:
    dtype = str(option(d, "kv_cache_dtype") or "")
    return f"kv_cache_dtype is {dtype}" if dtype.startswith("fp8") else None


@rule(
    "flashinfer-prefill",
    "medium",
    consequence="the prefill backend changes the drafter's input and so its acceptance",
    what_to_do="both arms share prefill and decode backends",
)
def flashinfer_prefill(d: Document) -> str | None:
    split = option(d, "prefill_attention_backend")
    return (
        f"prefill runs on {split}"
        if split == "flashinfer" and option(d, "decode_attention_backend") != "flashinfer"
        else None
    )


@rule(
    "eager",
    "high",
    consequence="without CUDA graphs launch overhead hides what a tree costs; the comparison is void",
    what_to_do="remove --disable-cuda-graph from both arms",
)
def eager(d: Document) -> str | None:
    on_gpu = part(d, "hardware", "gpu", "state") == "ok"
    return "the service runs with CUDA graphs disabled" if on_gpu and option(d, "disable_cuda_graph") is True else None
