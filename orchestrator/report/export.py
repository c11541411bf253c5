"""Results as files for other programs: CSV (one row per measurement, per arm) and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from orchestrator.bench.result import SweepResult
from orchestrator.bench.rows import Row
from orchestrator.bench.summary import ArmSummary
from orchestrator.documents import encode

ROW_COLUMNS = (
    "concurrency", "budget", "pair", "arm", "block", "valid", "findings", "prompts", "tokens", "wall_s", "tok_s",
    "verify_steps", "tokens_per_step", "accept_length", "chain_accept_length", "client_delay_p99_s", "ties", "measured_at",
)  # fmt: skip
ARM_COLUMNS = (
    "concurrency", "budget", "n", "invalid_pairs", "blocks", "ratio", "ci95_low", "ci95_high", "sign_p", "noise_sd",
    "linear_tok_s", "tree_tok_s", "linear_tokens_per_step", "tree_tokens_per_step", "chain_tokens_per_step",
    "linear_ms_per_step", "tree_ms_per_step", "standing", "pairs_needed", "reason",
)  # fmt: skip


def _csv(columns: Sequence[str], records: Sequence[dict[str, object]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def rows_csv(rows: Sequence[Row]) -> str:
    """Units are in the column names; empty = not known. Several findings or prompts are joined with a space."""
    return _csv(
        ROW_COLUMNS,
        [
            row.to_json()
            | {
                "findings": " ".join(f.rule for f in row.findings),
                "prompts": " ".join(r.prompt_id for r in row.requests),
            }
            for row in rows
        ],
    )


def arms_csv(arms: Sequence[ArmSummary]) -> str:
    """One line per budget and concurrency."""
    return _csv(
        ARM_COLUMNS,
        [
            arm.to_json() | {"ci95_low": (arm.ci95 or ("", ""))[0], "ci95_high": (arm.ci95 or ("", ""))[1]}
            for arm in arms
        ],
    )


def sweep_json(result: SweepResult) -> str:
    """The whole result; `orchestrator.bench.result.sweep_from_json` reads it back."""
    return encode(result.to_json())
