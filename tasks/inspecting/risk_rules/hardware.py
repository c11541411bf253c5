"""Rules about GPUs, memory, disk and container."""

from __future__ import annotations

from tasks.inspecting.risks import GIB, Document, part, rule


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
