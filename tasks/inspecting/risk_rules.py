"""The rules themselves. Sources: research on published failures (issue numbers there), the engine's own limits."""

from __future__ import annotations

from tasks.inspecting.risks import GIB, Document, part, rule

SHORT_OUTPUT_TOKENS = 256


def _resolved(document: Document, name: str) -> object:
    return part(document, "sglang", "service", "options", name)


def _hybrid(document: Document) -> bool:
    return str(part(document, "model", "target", "kind") or "").startswith("hybrid")


# ---- the service and its environment ----


@rule(
    "no-service",
    "blocker",
    consequence="there is nothing to clone, to compare with, or to roll back to",
    what_to_do="start the linear service, or run the graph deploy-dflash first",
)
def no_service(d: Document) -> str | None:
    return None if part(d, "kind") == "folder" or part(d, "sglang", "service") else "no SGLang server process was found"


@rule(
    "no-dflash",
    "blocker",
    consequence="DDTree takes its candidates from a DFlash drafter",
    what_to_do="move to an SGLang with DFLASH (0.5.16, 0.5.20 or 0.5.23 are supported)",
)
def no_dflash(d: Document) -> str | None:
    return (
        "the package has no DFLASH algorithm"
        if part(d, "sglang", "dflash") == "none" and part(d, "sglang", "version")
        else None
    )


@rule(
    "not-dflash-now",
    "high",
    consequence="there is no linear DFlash baseline to compare with or to return to",
    what_to_do="run the graph deploy-dflash first; it ends with a recorded linear service",
)
def not_dflash_now(d: Document) -> str | None:
    service = part(d, "sglang", "service")
    algorithm = part(d, "sglang", "service", "algorithm")
    return (
        f"the algorithm in force is {algorithm or 'none'}"
        if service and algorithm not in ("DFLASH", "DDTREE")
        else None
    )


@rule(
    "unsupported-version",
    "blocker",
    consequence="the plug-in refuses to start on a version it was not written for",
    what_to_do="use a supported version for the clone, or wait for a release of the plug-in that names this one",
)
def unsupported_version(d: Document) -> str | None:
    version, known = part(d, "sglang", "version"), part(d, "sglang", "supported_versions") or []
    return (
        f"sglang {version}; the plug-in knows {', '.join(known)}"
        if version and known and version not in known
        else None
    )


@rule(
    "hooks-changed",
    "blocker",
    consequence="an override would not be called, or be called with other arguments",
    what_to_do="do not force it: compare the named function with the plug-in's compat module for this line",
)
def hooks_changed(d: Document) -> str | None:
    bad = [h for h in part(d, "sglang", "hooks") or [] if h["state"] in ("missing", "changed")]
    return (
        f"{len(bad)} of {len(part(d, 'sglang', 'hooks'))} hook points differ, first {bad[0]['target']} ({bad[0]['detail'] or bad[0]['state']})"
        if bad
        else None
    )


@rule(
    "colliding-plugin",
    "high",
    consequence="two plug-ins may override the same worker; the last one loaded wins silently",
    what_to_do="set SGLANG_PLUGINS=sglang_ddtree for the clone, or remove the other plug-in there",
)
def colliding_plugin(d: Document) -> str | None:
    other = part(d, "sglang", "other_plugins") or []
    return ", ".join(f"{p['dist']} {p['version']} ({p['name']})" for p in other) or None


@rule(
    "unused-copies",
    "low",
    consequence="patching or reading the wrong copy changes nothing (and proves nothing)",
    what_to_do="nothing: only the copy that the service imports is cloned",
)
def unused_copies(d: Document) -> str | None:
    copies = part(d, "sglang", "unused_copies") or []
    return f"{len(copies)} other copies, e.g. {copies[0]['path']} ({copies[0]['version']})" if copies else None


@rule(
    "editable-install",
    "medium",
    consequence="a hard-link clone still imports the checkout, so the clone would not be isolated",
    what_to_do="the clone gets a copy of the checkout's package instead of the path entry",
)
def editable(d: Document) -> str | None:
    kind = part(d, "sglang", "package_kind")
    return (
        f"sglang comes from {part(d, 'sglang', 'package_path')} ({kind})"
        if kind in ("editable", "pythonpath", "cwd", "user-site", "script")
        else None
    )


@rule(
    "shadowed-package",
    "medium",
    consequence="another start (other folder, other user) would import another version",
    what_to_do="the release pins PYTHONPATH and PYTHONNOUSERSITE in its environment file",
)
def shadowed(d: Document) -> str | None:
    shadowed = part(d, "sglang", "shadowed") or []
    return f"{part(d, 'sglang', 'package_path')} hides {shadowed[0]}" if shadowed else None


@rule(
    "mapped-conflict",
    "high",
    consequence="it is not certain which copy the process runs",
    what_to_do="restart the service once and inspect again",
)
def mapped_conflict(d: Document) -> str | None:
    return part(d, "sglang", "conflict")


@rule(
    "renamed-flags",
    "medium",
    consequence="the same command line would not start on another version (or warns on this one)",
    what_to_do="the release's unit is written with the new names",
)
def renamed_flags(d: Document) -> str | None:
    found = part(d, "sglang", "flags") or []
    return (
        "; ".join(f"{f['option']} is {f['kind']}" + (f", now {f['became']}" if f["became"] else "") for f in found)
        or None
    )


@rule(
    "unit-not-reloaded",
    "medium",
    consequence="the running service differs from its unit file; a restart would change it",
    what_to_do="run systemctl daemon-reload, restart once and inspect again",
)
def not_reloaded(d: Document) -> str | None:
    return "systemd says NeedDaemonReload=yes" if part(d, "hardware", "system", "unit", "needs_reload") else None


@rule(
    "short-start-timeout",
    "medium",
    consequence="systemd kills the engine while it loads weights and captures graphs",
    what_to_do="the drop-in sets TimeoutStartSec=1800",
)
def short_timeout(d: Document) -> str | None:
    seconds = part(d, "hardware", "system", "unit", "start_timeout_s")
    return f"TimeoutStartSec is {seconds:.0f} s" if isinstance(seconds, int | float) and seconds < 600 else None


@rule(
    "restart-loop",
    "high",
    consequence="a service that restarts by itself voids every measurement",
    what_to_do="read the journal of the unit and mend the cause before deploying",
)
def restarting(d: Document) -> str | None:
    count = part(d, "hardware", "system", "unit", "restarts") or 0
    return f"the unit was restarted {count} times" if count else None


# ---- trees in this engine ----


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
    return part(d, "sglang", "backend_refusal")


@rule(
    "chain-gates",
    "medium",
    consequence="a tree that leaves speculative_eagle_topk at 1 gets chain-layout windows and masks: silently wrong state",
    what_to_do="the plug-in sets the gate; the self-test compares committed state with a sequential replay",
)
def chain_gates(d: Document) -> str | None:
    gates = part(d, "sglang", "gates") or []
    return "; ".join(gates) if gates and _hybrid(d) else None


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
            if _resolved(d, n)
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
    pp = _resolved(d, "pp_size")
    if pp not in (None, 1, "1"):
        return f"pp_size is {pp}"
    if _resolved(d, "enable_dp_attention") is True:
        return "DP attention is on"
    mode = _resolved(d, "disaggregation_mode")
    return f"disaggregation_mode is {mode}" if mode not in (None, "null", "none") else None


@rule(
    "fp8-kv",
    "medium",
    consequence="published pairs lost acceptance with an 8-bit KV cache",
    what_to_do="compare the acceptance of both KV types before blaming the tree",
)
def fp8_kv(d: Document) -> str | None:
    dtype = str(_resolved(d, "kv_cache_dtype") or "")
    return f"kv_cache_dtype is {dtype}" if dtype.startswith("fp8") else None


@rule(
    "flashinfer-prefill",
    "medium",
    consequence="the prefill backend changes the drafter's input and so its acceptance",
    what_to_do="both arms share prefill and decode backends",
)
def flashinfer_prefill(d: Document) -> str | None:
    split = _resolved(d, "prefill_attention_backend")
    return (
        f"prefill runs on {split}"
        if split == "flashinfer" and _resolved(d, "decode_attention_backend") != "flashinfer"
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
    return (
        "the service runs with CUDA graphs disabled" if on_gpu and _resolved(d, "disable_cuda_graph") is True else None
    )


# ---- models ----


@rule(
    "draft-mismatch",
    "blocker",
    consequence="the drafter's marginals are noise or the engine refuses to start",
    what_to_do="use the draft that was trained for this target",
)
def draft_mismatch(d: Document) -> str | None:
    problems = part(d, "model", "compat", "problems") or []
    return "; ".join(str(p) for p in problems) or None


@rule(
    "no-draft",
    "blocker",
    consequence="there is nothing to build a tree from",
    what_to_do="name the draft's folder under model in hosts.yaml",
)
def no_draft(d: Document) -> str | None:
    return (
        "no draft model was found"
        if part(d, "model", "target") and not part(d, "model", "draft") and part(d, "kind") != "folder"
        else None
    )


@rule(
    "thinking-draft",
    "medium",
    consequence="drafts trained with thinking off accept 6 to 15 % with thinking on",
    what_to_do="measure acceptance with thinking on and off, and benchmark with what your users send",
)
def thinking(d: Document) -> str | None:
    mode = part(d, "model", "target", "thinking")
    return (
        f"the target's template has thinking {mode}"
        if mode in ("switchable", "always") and part(d, "model", "draft")
        else None
    )


@rule(
    "bf16-state",
    "high",
    consequence="rounding of the recurrent state adds up; a tree then accepts less than the chain it contains",
    what_to_do="run with --mamba-ssm-dtype float32",
)
def bf16_state(d: Document) -> str | None:
    given = _resolved(d, "mamba_ssm_dtype") or part(d, "model", "target", "linear", "state_dtype")
    return f"the recurrent state is kept in {given}" if given in ("bfloat16", "float16") else None


@rule(
    "quantised-target",
    "medium",
    consequence="kernels of quantised weights change with the number of rows, so greedy texts may differ at near ties",
    what_to_do="parity is judged by logit gaps, not by equal strings alone",
)
def quantised(d: Document) -> str | None:
    kind = part(d, "model", "target", "quantisation")
    return f"the target is quantised ({kind})" if kind not in (None, "none") else None


@rule(
    "long-context-draft",
    "low",
    consequence="drafts trained at short context lose acceptance on long prompts",
    what_to_do="benchmark at the prompt lengths that you serve",
)
def long_context(d: Document) -> str | None:
    window = part(d, "model", "draft", "sliding_window")
    return f"the draft attends to a window of {window} tokens" if window else None


# ---- hardware and memory ----


@rule(
    "gpu-state", "blocker", consequence="the engine can't run on this host as it is", what_to_do="mend the driver first"
)
def gpu_state(d: Document) -> str | None:
    state = part(d, "hardware", "gpu", "state")
    return part(d, "hardware", "gpu", "detail") if state in ("no-driver", "mismatch", "no-device", "slow") else None


@rule(
    "gpu-throttled",
    "medium",
    consequence="clocks change during the benchmark",
    what_to_do="wait until the GPU is cool or raise the power limit",
)
def throttled(d: Document) -> str | None:
    hot = [
        f"GPU {g['index']}: {', '.join(g['throttled_by'])}"
        for g in part(d, "hardware", "gpu", "gpus") or []
        if g["throttled_by"]
    ]
    return "; ".join(hot) or None


@rule(
    "mig",
    "medium",
    consequence="a MIG slice has a share of memory bandwidth: data-sheet predictions do not hold",
    what_to_do="use the budgets measured on the slice only",
)
def mig(d: Document) -> str | None:
    on = [str(g["index"]) for g in part(d, "hardware", "gpu", "gpus") or [] if g["mig"]]
    return f"MIG is on for GPU {', '.join(on)}" if on else None


@rule(
    "foreign-gpu-job",
    "high",
    consequence="another process shares the GPU: memory may not suffice and times are void",
    what_to_do="stop it or choose another GPU for the canary",
)
def foreign(d: Document) -> str | None:
    jobs = part(d, "hardware", "foreign_gpu_processes") or []
    return "; ".join(f"{j['name']} (pid {j['pid']}{', ' + j['unit'] if j.get('unit') else ''})" for j in jobs) or None


@rule(
    "closed-driver-blackwell",
    "medium",
    consequence="Blackwell GPUs need the open kernel module",
    what_to_do="install the open flavour of the driver",
)
def closed_module(d: Document) -> str | None:
    gpus = part(d, "hardware", "gpu", "gpus") or []
    blackwell = any((g["arch"] or "").startswith(("sm_10", "sm_12")) for g in gpus)
    return (
        "the proprietary kernel module is loaded"
        if blackwell and part(d, "hardware", "gpu", "open_kernel_module") is False
        else None
    )


@rule(
    "pcie-p2p",
    "medium",
    consequence="peer copies over PCIe hang or corrupt on some boards with IOMMU on",
    what_to_do="keep tp 1 per GPU, or set NCCL_P2P_DISABLE=1 for the canary",
)
def pcie(d: Document) -> str | None:
    links = part(d, "hardware", "gpu", "topology") or {}
    tp = part(d, "setting", "tp") or 1
    over = [k for k, v in links.items() if not v.startswith("NV")]
    return f"tp {tp} over PCIe ({over[0]}: {links[over[0]]})" if tp > 1 and over else None


@rule(
    "no-budget-fits",
    "blocker",
    consequence="the engine would run out of memory at start",
    what_to_do="lower the context length or the running requests, quantise the target, or use more GPUs",
)
def no_budget(d: Document) -> str | None:
    rows = part(d, "budgets") or []
    return f"15 nodes: {rows[0]['reason']}" if rows and not any(r["fits"] for r in rows) else None


@rule(
    "upstream-snapshots",
    "medium",
    consequence="upstream's state per node would not fit, so stock tree verify is no fallback",
    what_to_do="keep the state-free verify on (SGLANG_DDTREE_STATE_FREE=1, the default)",
)
def snapshots(d: Document) -> str | None:
    worst = next((r for r in part(d, "budgets") or [] if r["fits"] and not r["upstream_fits"]), None)
    return (
        f"{worst['nodes']} nodes would need {worst['upstream_snapshots'] / GIB:.1f} GiB of states per node"
        if worst
        else None
    )


@rule(
    "disk",
    "high",
    consequence="the clone fails half way (what was there stays as it was)",
    what_to_do="free space under the host's root",
)
def disk(d: Document) -> str | None:
    for path, facts in (part(d, "hardware", "system", "disks") or {}).items():
        if facts and facts["free_bytes"] < 2 * GIB and path != "/":
            return f"{path} has {facts['free_bytes'] / GIB:.1f} GiB free"
    return None


@rule(
    "open-files",
    "low",
    consequence="a loaded server runs out of descriptors",
    what_to_do="set LimitNOFILE=65536 in the unit",
)
def open_files(d: Document) -> str | None:
    soft = part(d, "sglang", "service", "limits", "nofile")
    return f"the service may open {soft} files" if isinstance(soft, int) and soft < 4096 else None


@rule(
    "container-docker",
    "medium",
    consequence="what is installed inside is lost when the container is made anew",
    what_to_do="mount the root of the releases from outside, or build the release into the image",
)
def docker(d: Document) -> str | None:
    return (
        "the engine runs in a Docker container"
        if part(d, "hardware", "system", "kind") in ("docker", "podman") and part(d, "sglang", "service")
        else None
    )


# ---- measuring ----


@rule(
    "batch",
    "medium",
    consequence="wide trees lose at high concurrency: a step becomes bound by arithmetic",
    what_to_do="benchmark at your concurrency; adaptive mode returns to linear above the break-even batch",
)
def batch(d: Document) -> str | None:
    requests = part(d, "setting", "running_requests") or 1
    return f"up to {requests} requests run together" if requests >= 8 else None


@rule(
    "short-outputs",
    "low",
    consequence=f"answers under {SHORT_OUTPUT_TOKENS} tokens hide the cost of a step and have shown gains that vanish",
    what_to_do="the benchmark refuses such rows; give prompts with long answers",
)
def short_outputs(d: Document) -> str | None:
    return "holds for every benchmark of speculative decoding" if part(d, "kind") != "folder" else None


@rule(
    "near-ties",
    "low",
    consequence="greedy text may differ from non-speculative decoding where two tokens are nearly equal",
    what_to_do="compare with linear DFlash on the same backend; differences are classed by their logit gap",
)
def near_ties(d: Document) -> str | None:
    return "holds for every verify width other than 1" if part(d, "kind") != "folder" else None


@rule(
    "hybrid-tree-gain",
    "medium",
    consequence="public ports on hybrid models were 22 to 32 % slower than the chain",
    what_to_do="let the paired benchmark decide; keeping linear is a valid end",
)
def hybrid_gain(d: Document) -> str | None:
    return "the target has recurrent layers" if _hybrid(d) else None
