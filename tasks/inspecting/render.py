"""An inspection as plain text (80 columns) and as the roadmap's Markdown section."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inspecting.measured import gain_at
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
        unit = _unit(document)[0]
        blocks += ["", f"Node budgets (B nodes, T = B + 1 rows; {unit} for all running requests)"]
        blocks += _table(budget_rows(document))
        if document.get("predictions"):
            blocks += ["  * predicted from data-sheet figures; the benchmark decides"]
        blocks += _wrap(_gain_note(document), indent=2, hang=4) if _gain_note(document) else []
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
        lines += [f"Memory in {_unit(document)[0]} for all running requests."]
        if document.get("predictions"):
            lines += ["*: predictions from data-sheet figures; the benchmark decides."]
        lines += [_gain_note(document)] if _gain_note(document) else []
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
    """Header and one row per shown budget; columns without a figure are left out."""
    predictions = {p["nodes"]: p for p in document.get("predictions", [])}
    gains = part(document, "model", "measured_gain") or {}
    size = _unit(document)[1]
    rows = [["B", "T", "fits", "tree", "upstream states", "KV tokens"]]
    rows[0] += ["step ms*", "break-even*"] if predictions else []
    rows[0] += ["oracle gain"] if gains else []
    for row in document["budgets"]:
        nodes = row["nodes"]
        if nodes not in SHOWN_BUDGETS:
            continue
        cells = [str(nodes), str(row["width"]), "yes" if row["fits"] else "no", f"{row['bytes'] / size:.2f}"]
        cells += [f"{row['upstream_snapshots'] / size:.1f}", str(row["kv_tokens"])]
        if predictions:
            seen = predictions.get(nodes)
            cells += [f"{seen['step_s'] * 1e3:.1f}", f"+{seen['break_even_gain']:.0%}"] if seen else ["-", "-"]
        if gains:
            measured = gain_at(gains, nodes)
            cells.append("-" if measured is None else f"{measured:+.0%}")
        rows.append(cells)
    return rows


def _gain_note(document: Document) -> str:
    on = part(document, "model", "measured_on")
    return f"oracle gain: tokens a step over the chain at temperature 0 on {on}" if on else ""


def _unit(document: Document) -> tuple[str, int]:
    """GiB, or MiB where the largest figure would be under one GiB."""
    largest = max(row["bytes"] for row in document["budgets"])
    return ("GiB", GIB) if largest >= GIB else ("MiB", GIB >> 10)


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
        by_arch = sglang.get("tree_backends_by_arch") or {}
        if by_arch:
            pairs += [(f"trees on {arch}", _by_kind(kinds)) for arch, kinds in by_arch.items()]
        else:
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


def _by_kind(backends: Mapping[str, Sequence[str]]) -> str:
    dense, hybrid = (", ".join(backends[kind]) or "none" for kind in ("dense", "hybrid"))
    return dense if dense == hybrid else f"{dense}; hybrid models: {hybrid}"


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
