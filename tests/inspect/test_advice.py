"""Risks, recommendation and their texts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inspecting import hardware_part, inspect_folder, memory, roofline
from tasks.inspecting.advice import engine_comparison, recommend
from tasks.inspecting.model_config import read_model
from tasks.inspecting.render import WIDTH, markdown, text
from tasks.inspecting.risks import map_risks, rules
from tests.inspect.conftest import make_package

FIXTURES = Path(__file__).parent / "fixtures"


def load(name: str) -> Any:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def healthy(gpu: str = "h200_x2", system: str = "bare") -> dict[str, Any]:
    """The document of a host on which nothing is wrong: H200, 0.5.23, a 27B hybrid with its draft."""
    captured, machine = load(f"nvidia/{gpu}"), load(f"system/{system}")
    raw = {**machine["raw"], "nvidia_driver_file": captured["driver_file"]}
    facts = {"commands": {**captured["commands"], **machine["commands"]}, "system": raw, "processes": {"others": []}}
    models = [
        read_model(f"/models/{name}", {k: json.dumps(v) for k, v in load(f"models/{name}").items()})
        for name in ("hybrid_27b", "draft_27b")
    ]
    release = load("sglang_versions")["0.5.23"]
    setting = memory.Setting(gpu_bytes=143771 << 20, running_requests=1)
    device = roofline.device_of("NVIDIA H200")
    assert device is not None
    service = {
        "pid": 7,
        "unit": "sglang.service",
        "port": 30000,
        "algorithm": "DFLASH",
        "options": {},
        "limits": {"nofile": 65536},
    }
    sglang = {
        **release, "package_path": "/v/sglang", "package_kind": "site-packages", "service": service, "hybrid": True,
        "tree_backends": release["tree_backends_by_arch"]["sm_90"]["hybrid"], "supported_versions": ["0.5.16", "0.5.20", "0.5.23"],
        "hooks": [{"target": "sglang.a:b", "kind": "patch", "state": "present", "detail": ""}],
    }  # fmt: skip
    return {
        "subject": "gpu1",
        "kind": "host",
        "sglang": sglang,
        "vllm": load("vllm_versions")["0.33.0"],
        "model": {"target": models[0].to_json(), "draft": models[1].to_json(), "notes": [], "compat": {"problems": []}},
        "hardware": hardware_part.read(facts, []),
        "other_engines": [],
        "setting": vars(setting),
        "budgets": [row.to_json() for row in memory.budgets(models[0], models[1], setting)],
        "predictions": [p.to_json() for p in roofline.predict(models[0], models[1], device, setting, memory.BUDGETS)],
        "not_seen": [],
        "seconds": 1.0,
    }


def with_change(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(healthy())
    *keys, last = path.split(".")
    place = document
    for key in keys:
        place = place[key]
    place[last] = value
    return document


def ids(document: dict[str, Any]) -> set[str]:
    return {risk.id for risk in map_risks(document)}


def test_a_healthy_host_has_no_blocker_and_gets_a_budget() -> None:
    document = healthy()
    risks = map_risks(document)
    assert {r.severity for r in risks} <= {"medium", "low"}
    advice = recommend(document, [r.to_json() for r in risks])
    assert advice["decision"] == "deploy"
    assert advice["nodes"] in (127, 128, 255, 256)


def unit(name: str) -> Any:
    from dataclasses import asdict

    from tasks.inspecting.system import read_unit

    found = read_unit(load("system/units")[name])
    assert found is not None
    return asdict(found)


BROKEN_HOOK = [{"target": "sglang.a:b", "kind": "patch", "state": "changed", "detail": "no parameter x any more"}]
FLAG = [
    {"option": "--mamba-scheduler-strategy", "kind": "unknown", "became": "--mamba-radix-cache-strategy", "why": ""}
]
JOB = [{"pid": 9, "name": "train.py", "bytes": 1, "unit": "train.service"}]
PLUGIN = [{"dist": "ax_engine_sglang", "version": "0.3.0", "name": "fc1", "group": "sglang.srt.plugins"}]
COPY = [{"package": "sglang", "path": "/old/sglang", "version": "0.5.11"}]
THROTTLED = [{"index": 0, "name": "x", "arch": "sm_90", "mig": True, "throttled_by": ["power cap"]}]
BLACKWELL = [{"index": 0, "name": "x", "arch": "sm_120", "mig": False, "throttled_by": []}]
CASES = {
    "no-service": ("sglang.service", None),
    "no-dflash": ("sglang.dflash", "none"),
    "not-dflash-now": ("sglang.service.algorithm", "NEXTN"),
    "unsupported-version": ("sglang.version", "0.5.18"),
    "hooks-changed": ("sglang.hooks", BROKEN_HOOK),
    "colliding-plugin": ("sglang.other_plugins", PLUGIN),
    "unused-copies": ("sglang.unused_copies", COPY),
    "editable-install": ("sglang.package_kind", "editable"),
    "shadowed-package": ("sglang.shadowed", ["/v2/sglang"]),
    "mapped-conflict": ("sglang.conflict", "maps say otherwise"),
    "renamed-flags": ("sglang.flags", FLAG),
    "unit-not-reloaded": ("hardware.system.unit", unit("looping")),
    "restart-loop": ("hardware.system.unit", unit("looping")),
    "short-start-timeout": ("hardware.system.unit", unit("active")),
    "no-tree-backend": ("sglang.tree_backends", []),
    "chain-backend": ("sglang.backend_refusal", "trtllm_mha verifies chains only"),
    "replayssm-spec": ("sglang.service.options", {"enable_linear_replayssm_spec": True}),
    "other-recurrence": ("model.target.other_recurrence", "kimi_linear"),
    "parallelism": ("sglang.service.options", {"pp_size": 2}),
    "fp8-kv": ("sglang.service.options", {"kv_cache_dtype": "fp8_e4m3"}),
    "flashinfer-prefill": (
        "sglang.service.options",
        {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "trtllm_mha"},
    ),
    "eager": ("sglang.service.options", {"disable_cuda_graph": True}),
    "draft-mismatch": ("model.compat.problems", ["mask token 5 is outside the vocabulary"]),
    "no-draft": ("model.draft", None),
    "bf16-state": ("sglang.service.options", {"mamba_ssm_dtype": "bfloat16"}),
    "quantised-target": ("model.target.quantisation", "fp8"),
    "gpu-state": (
        "hardware.gpu",
        {"state": "mismatch", "detail": "module and library differ", "gpus": [], "arch": None},
    ),
    "gpu-throttled": ("hardware.gpu.gpus", THROTTLED),
    "mig": ("hardware.gpu.gpus", THROTTLED),
    "foreign-gpu-job": ("hardware.foreign_gpu_processes", JOB),
    "closed-driver-blackwell": (
        "hardware.gpu",
        {"state": "ok", "gpus": BLACKWELL, "arch": "sm_120", "open_kernel_module": False},
    ),
    "no-budget-fits": ("budgets", [{"nodes": 15, "fits": False, "upstream_fits": False, "reason": "3.0 GiB short"}]),
    "disk": (
        "hardware.system.disks",
        {"/opt/ddtree": {"free_bytes": 1 << 30, "total_bytes": 1 << 40, "read_only": False}},
    ),
    "open-files": ("sglang.service.limits", {"nofile": 1024}),
    "container-docker": ("hardware.system.kind", "docker"),
    "batch": ("setting.running_requests", 48),
}
ALWAYS_HERE = {
    "chain-gates",
    "thinking-draft",
    "long-context-draft",
    "upstream-snapshots",
    "short-outputs",
    "near-ties",
    "hybrid-tree-gain",
}


@pytest.mark.parametrize("rule", sorted(CASES))
def test_each_rule_fires_on_its_case_and_not_on_a_healthy_host(rule: str) -> None:
    assert rule not in ids(healthy())
    assert rule in ids(with_change(*CASES[rule]))


def test_pcie_matters_with_tensor_parallelism_only() -> None:
    document = {**healthy("rtx_pro_6000_x8"), "setting": {"tp": 2, "running_requests": 1}}
    assert "pcie-p2p" in ids(document)
    assert "pcie-p2p" not in ids({**document, "setting": {"tp": 1, "running_requests": 1}})


def test_every_rule_has_a_case_and_full_texts() -> None:
    assert {rule.id for rule in rules()} == {*CASES, *ALWAYS_HERE, "pcie-p2p"}
    assert ids(healthy()) == ALWAYS_HERE
    assert all(r.consequence and r.what_to_do and r.severity in ("blocker", "high", "medium", "low") for r in rules())


def test_a_blocker_is_to_be_mended_first() -> None:
    document = with_change("sglang.version", "0.5.18")
    advice = recommend(document, [r.to_json() for r in map_risks(document)])
    assert advice["decision"] == "fix-first"
    assert "unsupported-version" in advice["next_steps"][0]


def test_measured_acceptance_replaces_the_expectation() -> None:
    document = healthy()
    document["model"]["measured_gain"] = {str(n): 0.0 for n in memory.BUDGETS}
    assert recommend(document, [])["nodes"] in (15, 16)  # the widths that cost nothing over linear's


def test_comparison_of_engines() -> None:
    table = {row["question"]: row for row in engine_comparison(healthy())}
    assert (table["version"]["sglang"], table["version"]["vllm"]) == ("0.5.23", "0.33.0")
    assert table["DDTree port"]["vllm"] == "fork"
    without = {row["question"]: row["vllm"] for row in engine_comparison({**healthy(), "vllm": None})}
    assert set(without.values()) == {"not installed"}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    risks = [r.to_json() for r in map_risks(document)]
    return {**document, "risks": risks, "recommendation": recommend(document, risks)}


def test_text_is_eighty_columns_wide_and_plain() -> None:
    shown = text(complete(healthy("rtx_pro_6000_x8", "proxmox_ct")))
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "\x1b" not in shown
    for part in ("DFlash linear, DDTree none", "48 GDN + 16 full", "proxmox-ct", "Recommendation: deploy"):
        assert part in " ".join(shown.split())


def test_markdown_has_every_section() -> None:
    shown = markdown(complete(healthy()))
    for title in (
        "Host and engine as inspected",
        "Engines compared",
        "Node budgets on this host",
        "Risks",
        "Recommendation: deploy",
    ):
        assert f"### {title}" in shown
    assert "predictions from data-sheet figures" in shown


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(CASES)), st.sampled_from(sorted(CASES)))
def test_any_two_troubles_are_rendered(first: str, second: str) -> None:
    document = with_change(*CASES[first])
    try:
        place = document
        *keys, last = CASES[second][0].split(".")
        for key in keys:
            place = place[key]
        place[last] = CASES[second][1]
    except TypeError:
        return  # the first trouble removed what the second one would change
    if document["hardware"]["gpu"].get("gpus") in (THROTTLED, BLACKWELL):
        document["hardware"]["gpu"]["gpus"] = [dict(g, driver="1") for g in document["hardware"]["gpu"]["gpus"]]
    document["budgets"] = healthy()["budgets"] if second != "no-budget-fits" and first != "no-budget-fits" else []
    assert text(complete(document))
    assert markdown(complete(document))


def test_a_folder_that_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds neither sglang nor vllm nor a model"):
        inspect_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="is no folder"):
        inspect_folder(tmp_path / "absent")


def test_a_folder_with_a_package_and_one_with_a_model(tmp_path: Path) -> None:
    make_package(tmp_path, "0.5.20")
    document = inspect_folder(tmp_path).to_json()
    assert (document["sglang"]["version"], document["recommendation"]["decision"]) == ("0.5.20", "judge-only")
    for name, value in load("models/hybrid_27b").items():
        (tmp_path / name).write_text(json.dumps(value))
    assert inspect_folder(tmp_path).to_json()["model"]["target"]["kind"] == "hybrid"
