"""Does this draft fit this target? Answered from configurations and tensor tables alone, without torch.

Every finding names a mismatch that was seen in the field; an error means that the pair cannot work, a warning
that it starts and accepts little or wrong, a hint that a measurement should look at it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tasks import compat_quality_rules, compat_rules  # noqa: F401  (importing them fills RULES)
from tasks.compat_view import RULES, ConfigProblem, Finding, PairView, TensorTable

Severity = Literal["error", "warning", "hint"]
MAX_HEADER_BYTES = 100 << 20

__all__ = ["CompatReport", "Finding", "check_configs", "check_pair"]


@dataclass(frozen=True)
class CompatReport:
    """All findings, errors first; ``facts`` are the numbers that a deployment needs."""

    findings: list[Finding]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """``problems`` are the errors' sentences, ``notes`` the other ones."""
        return {
            "ok": self.ok,
            "problems": [f.sentence for f in self.findings if f.severity == "error"],
            "notes": [f.sentence for f in self.findings if f.severity != "error"],
            "findings": [asdict(finding) for finding in self.findings],
            "facts": self.facts,
        }


def check_configs(
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    *,
    target_tensors: TensorTable | None = None,
    draft_tensors: TensorTable | None = None,
    target_tokenizer: Mapping[str, Any] | None = None,
    draft_tokenizer: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    service: Mapping[str, Any] | None = None,
) -> CompatReport:
    """Check two parsed config.json; what is not given is not checked.

    ``*_tensors``: name -> (dtype, shape) from the safetensors headers. ``*_tokenizer``: parsed tokenizer.json.
    ``service``: the server's arguments by their names without dashes ({"tp_size": 2, "kv_cache_dtype": "fp8_e5m2"}).
    """
    view = PairView(
        target=dict(target_config),
        draft=dict(draft_config),
        target_tensors=target_tensors,
        draft_tensors=draft_tensors,
        target_tokenizer=target_tokenizer,
        draft_tokenizer=draft_tokenizer,
        chat_template=chat_template,
        service=dict(service or {}),
    )
    findings = [finding for rule in RULES for finding in _apply(rule, view)]
    order = {"error": 0, "warning": 1, "hint": 2}
    return CompatReport(sorted(findings, key=lambda f: order[f.severity]), view.facts())


def check_pair(target_dir: Path, draft_dir: Path, service: Mapping[str, Any] | None = None) -> CompatReport:
    """Check two model folders; unreadable or missing files are findings, not exceptions."""
    findings: list[Finding] = []

    def read(path: Path, needed: bool = False) -> dict[str, Any] | None:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if needed:
                findings.append(Finding("config-missing", "error", f"{path} does not exist", "name the model's folder"))
            return None
        except (OSError, ValueError) as error:
            findings.append(Finding("config-unreadable", "error", f"{path} is no JSON ({error})", "download it again"))
            return None
        return document if isinstance(document, dict) else {}

    target, draft = read(target_dir / "config.json", True), read(draft_dir / "config.json", True)
    if target is None or draft is None:
        return CompatReport(findings)
    tables: list[TensorTable | None] = []
    for folder in (target_dir, draft_dir):
        try:
            tables.append(read_tensor_table(folder))
        except ConfigProblem as problem:
            findings.append(Finding("weights-unreadable", "error", str(problem), "download the weights again"))
            tables.append(None)
    tokenizer_config = read(target_dir / "tokenizer_config.json") or {}
    template_file = target_dir / "chat_template.jinja"
    template = (
        template_file.read_text(encoding="utf-8") if template_file.is_file() else tokenizer_config.get("chat_template")
    )
    report = check_configs(
        target,
        draft,
        target_tensors=tables[0],
        draft_tensors=tables[1],
        target_tokenizer=read(target_dir / "tokenizer.json"),
        draft_tokenizer=read(draft_dir / "tokenizer.json"),
        chat_template=template if isinstance(template, str) else None,
        service=service,
    )
    return CompatReport(findings + report.findings, report.facts)


def read_tensor_table(folder: Path) -> TensorTable:
    """Names, dtypes and shapes of every tensor, from the headers of *.safetensors; {} for other weight formats."""
    table: TensorTable = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                if not 2 <= size <= min(MAX_HEADER_BYTES, path.stat().st_size):
                    raise ValueError("its header has an impossible size")
                header = json.loads(stream.read(size))
            end = max((v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"), default=0)
            if 8 + size + end > path.stat().st_size:
                raise ValueError("it is cut off")
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise ConfigProblem(f"{path} is no whole safetensors file: {error}") from error
        table |= {k: (v["dtype"], tuple(v["shape"])) for k, v in header.items() if k != "__metadata__"}
    return table


def _apply(rule: Callable[[PairView], Iterator[Finding]], view: PairView) -> Iterator[Finding]:
    """A value of the wrong type stops one rule with a finding, not the check."""
    try:
        yield from rule(view)
    except (ConfigProblem, TypeError, ValueError, AttributeError, KeyError) as problem:
        yield Finding(
            "config-value",
            "error",
            f"a value cannot be read while checking {rule.__name__}: {problem}",
            "compare the config.json with the published one",
        )
