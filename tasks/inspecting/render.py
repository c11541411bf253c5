"""An inspection as plain text (80 columns) and as the roadmap's Markdown section."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inspecting.risks import part

WIDTH = 80
GIB = 1 << 30
SHOWN_BUDGETS = (15, 31, 63, 127, 255, 511, 1023)
Document = Mapping[str, Any]


def text(document: Document) -> str:
    """The whole inspection for a person; every line fits 80 columns except unbreakable paths."""
    blocks = [
        _heading(f"Inspection of {document['subject']}"),
        *_pairs(_engine_pairs(document)),
        *_pairs(_model_pairs(document)),
        *_pairs(_hardware_pairs(document)),
    ]
    if document.get("budgets"):
        blocks += [
            "",
            "Node budgets (B nodes, T = B + 1 rows; GiB for all running requests)",
            *_table(budget_rows(document)),
        ]
    if document.get("risks"):
        blocks += ["", "Risks"]
        for risk in document["risks"]:
            blocks += _wrap(f"{risk['severity'].upper():8}{risk['id']}: {risk['evidence']}", indent=2, hang=10)
            blocks += _wrap(f"-> {risk['what_to_do']}", indent=10, hang=13)
    blocks += _advice_lines(document.get("recommendation"))
    for note in document.get("not_seen", []):
        blocks += _wrap(f"not seen: {note}", indent=0, hang=2)
    return "\n".join(blocks) + "\n"


def markdown(document: Document) -> str:
    """The roadmap's section: facts, comparison of engines, budgets, risks, recommendation."""
    lines = ["### Host and engine as inspected", ""]
    pairs = [*_engine_pairs(document), *_model_pairs(document), *_hardware_pairs(document)]
    lines += [f"- **{name}**: {value}" for name, value in pairs]
    advice = document.get("recommendation") or {}
    if advice.get("comparison"):
        rows = [
            ["question", "SGLang", "vLLM"],
            *([r["question"], r["sglang"], r["vllm"]] for r in advice["comparison"]),
        ]
        lines += ["", "### Engines compared", "", *_markdown_table(rows)]
    if document.get("budgets"):
        lines += ["", "### Node budgets on this host", "", *_markdown_table(budget_rows(document)), ""]
        lines += ["Step times are predictions from data-sheet figures; the benchmark decides."]
    if document.get("risks"):
        keys = ("severity", "id", "evidence", "consequence", "what_to_do")
        rows = [
            ["severity", "risk", "evidence", "consequence", "what to do"],
            *([r[k] for k in keys] for r in document["risks"]),
        ]
        lines += ["", "### Risks", "", *_markdown_table(rows)]
    if advice:
        lines += ["", f"### Recommendation: {advice['decision']}", "", *(f"- {reason}" for reason in advice["reasons"])]
        lines += ["", "Next steps:", "", *(f"{i}. {step}" for i, step in enumerate(advice["next_steps"], 1))]
    return "\n".join(lines) + "\n"


def budget_rows(document: Document) -> list[list[str]]:
    """Header and one row per shown budget."""
    predictions = {p["nodes"]: p for p in document.get("predictions", [])}
    rows = [["B", "T", "fits", "tree", "upstream states", "KV tokens", "step ms*", "break-even*"]]
    for row in document["budgets"]:
        if row["nodes"] in SHOWN_BUDGETS:
            seen = predictions.get(row["nodes"])
            step = f"{seen['step_s'] * 1e3:.1f}" if seen else "-"
            even = f"+{seen['break_even_gain']:.0%}" if seen else "-"
            figures = [f"{row['bytes'] / GIB:.2f}", f"{row['upstream_snapshots'] / GIB:.1f}", str(row["kv_tokens"])]
            rows.append([str(row["nodes"]), str(row["width"]), "yes" if row["fits"] else "no", *figures, step, even])
    return rows


def _engine_pairs(document: Document) -> list[tuple[str, str]]:
    sglang, vllm = document.get("sglang"), document.get("vllm")
    pairs: list[tuple[str, str]] = []
    if sglang and sglang.get("version"):
        service = sglang.get("service")
        pairs.append(("SGLang", f"{sglang['version']} at {sglang['package_path']} ({sglang.get('package_kind')})"))
        if service:
            place = f"unit {service['unit']}, " if service["unit"] else ""
            pairs.append(
                (
                    "service",
                    f"{place}pid {service['pid']}, port {service['port']}, algorithm {service['algorithm'] or 'none'}",
                )
            )
        pairs.append(
            ("speculation", f"DFlash {sglang['dflash']}, DDTree {sglang['ddtree']}; {', '.join(sglang['algorithms'])}")
        )
        backends = ", ".join(sglang.get("tree_backends") or []) or "none"
        pairs.append(("tree backends", f"{backends}{' (hybrid model)' if sglang.get('hybrid') else ''}"))
        hooks = sglang.get("hooks") or []
        good = sum(h["state"] == "present" for h in hooks)
        pairs.append(("plug-in hooks", f"{good} of {len(hooks)} present" if hooks else "list not available"))
    elif document.get("kind") == "host":
        pairs.append(("SGLang", "no service and no single copy found"))
    if vllm:
        pairs.append(("vLLM", f"{vllm['version']}, DFlash {vllm['dflash']}, DDTree port: {vllm['port']}"))
    elif document.get("kind") == "host":
        pairs.append(("vLLM", "not installed"))
    pairs += [
        ("other engine", f"{e['engine']} (pid {e['pid']}): {e['why']}") for e in document.get("other_engines", [])
    ]
    return pairs


def _model_pairs(document: Document) -> list[tuple[str, str]]:
    pairs = []
    for role in ("target", "draft"):
        model = part(document, "model", role)
        if model:
            linear = f", {model['linear']['layers']} GDN + {model['full']['layers']} full" if model["linear"] else ""
            size = (
                f"{model['parameters'] / 1e9:.2f} B"
                if model["parameters"] > 1e8
                else f"{model['parameters'] / 1e6:.2f} M"
            )
            block = f", block {model['block']}" if role == "draft" else ""
            pairs.append(
                (
                    role,
                    f"{model['architecture']}, {model['kind']}, {size}{linear}, {_weights(model)}{block}",
                )
            )
    pairs += [("model", note) for note in part(document, "model", "notes") or []]
    return pairs


def _weights(model: Mapping[str, Any]) -> str:
    quantised = model["quantisation"] != "none"
    return f"{model['quantisation']} weights" if quantised else f"{model['dtype']} weights"


def _hardware_pairs(document: Document) -> list[tuple[str, str]]:
    gpu, system = part(document, "hardware", "gpu"), part(document, "hardware", "system")
    if not gpu or not system:
        return []
    names = sorted({g["name"] for g in gpu["gpus"]})
    gpus = (
        f"{len(gpu['gpus'])} x {', '.join(names)} ({gpu['arch']}), driver {gpu['gpus'][0]['driver']}"
        if names
        else gpu["detail"]
    )
    memory = f"{system['memory_bytes'] / GIB:.0f} GiB RAM"
    return [
        ("GPU", gpus),
        (
            "host",
            f"{system['kind']}, {system['os']}, {system['cpus']} CPUs, {memory}, systemd {system['systemd'] or 'not there'}",
        ),
    ]


def _advice_lines(advice: Mapping[str, Any] | None) -> list[str]:
    if not advice:
        return []
    lines = ["", f"Recommendation: {advice['decision']}"]
    for reason in advice["reasons"]:
        lines += _wrap(f"- {reason}", indent=2, hang=4)
    for number, step in enumerate(advice["next_steps"], 1):
        lines += _wrap(f"{number}. {step}", indent=2, hang=5)
    return lines


def _heading(title: str) -> str:
    return f"{title}\n{'-' * min(len(title), WIDTH)}"


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for name, value in pairs:
        lines += _wrap(f"{name:15}{value}", indent=0, hang=15)
    return lines


def _wrap(line: str, indent: int, hang: int) -> list[str]:
    lead, rest = " " * indent, " " * hang
    return textwrap.wrap(
        line, WIDTH, initial_indent=lead, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    plain = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    head, *body = ["| " + " | ".join(row) + " |" for row in plain]
    return [head, "|" + "---|" * len(rows[0]), *body]
