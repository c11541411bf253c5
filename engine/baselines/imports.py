"""Baselines that others keep: acceptance lists as JSON, JSONL or CSV, and the official DDTree script's results."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .baseline import Baseline, PromptRecord, read_json
from .errors import BaselineError

ID_KEYS = ("id", "prompt_id", "question_id", "index", "idx")
LIST_KEYS = ("acceptance_lengths", "accept_lengths", "accept_length", "acceptance", "accepted", "accept")
OFFICIAL_TREE = re.compile(r"ddtree_tb(\d+)")
OFFICIAL_SUFFIXES = (".pt", ".pth", ".bin")


def import_baseline(source: Path, mode: str = "chain") -> Baseline:
    """Read acceptance per prompt; ``mode`` says what a file with one list per prompt measured.

    Lists hold tokens per step (confirmed proposals + 1), as the DFlash and DDTree scripts count. An imported
    baseline has no hashes and no anchors: the parity check follows it up to the first difference.
    """
    if source.suffix in OFFICIAL_SUFFIXES:
        records, block = _official(source)
    else:
        records, block = [_record(source, n, raw, mode) for n, raw in enumerate(_rows(source), 1)], 16
    if not records:
        raise BaselineError(f"{source} holds no acceptance lists: give one list per prompt.")
    modes = sorted({m for record in records for m in record.accept}, key=lambda m: int(m) if m.isdigit() else 0)
    for record in records:
        if set(record.accept) != set(modes):
            raise BaselineError(
                f"{source}: prompt {record.id!r} lacks one of {', '.join(modes)}: every prompt needs all."
            )
    length = max(sum(next(iter(record.accept.values()))) for record in records)
    return Baseline(
        target={"name": "imported"},
        draft={"name": "imported"},
        tokenizer={"name": "imported"},
        policy={},
        block_size=block,
        new_tokens=length,
        budgets=[int(m) for m in modes if m.isdigit()],
        prompts=records,
        made_with={"imported_from": source.name},
    )


def _rows(source: Path) -> list[Any]:
    advice = "give JSON, JSONL or CSV with one acceptance list per prompt"
    if source.suffix == ".jsonl":
        try:
            lines = source.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.strip()]
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BaselineError(f"{source} cannot be read ({error}): {advice}.") from error
    if source.suffix == ".csv":
        return _csv_rows(source, advice)
    document = read_json(source, advice)
    if isinstance(document, dict):
        for key in ("prompts", "results", "samples", "data", *LIST_KEYS):
            if isinstance(document.get(key), list):
                return document[key]
        return [{"id": name, "accept": value} for name, value in document.items()]
    if isinstance(document, list):
        return document
    raise BaselineError(f"{source} holds neither a list nor an object: {advice}.")


def _csv_rows(source: Path, advice: str) -> list[dict[str, Any]]:
    """Either one row per prompt with a list in a cell, or one row per step with columns id and accepted."""
    try:
        rows = list(csv.DictReader(io.StringIO(source.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BaselineError(f"{source} cannot be read ({error}): {advice}.") from error
    name = next((k for k in ID_KEYS if rows and k in rows[0]), None)
    value = next((k for k in LIST_KEYS if rows and k in rows[0]), None)
    if name is None or value is None:
        raise BaselineError(f"{source} needs a column of {', '.join(ID_KEYS)} and one of {', '.join(LIST_KEYS)}.")
    merged: dict[str, list[int]] = {}
    for number, row in enumerate(rows, 2):
        try:
            merged.setdefault(row[name], []).extend(int(float(x)) for x in re.findall(r"[\d.]+", row[value] or ""))
        except ValueError as error:
            raise BaselineError(f"{source} line {number} has no whole numbers in {value}: {row[value]!r}.") from error
    return [{"id": key, "accept": steps} for key, steps in merged.items()]


def _record(source: Path, number: int, raw: Any, mode: str) -> PromptRecord:
    if isinstance(raw, list):
        return PromptRecord(f"prompt-{number}", accept={mode: _steps(source, number, raw)})
    if isinstance(raw, dict):
        name = str(next((raw[k] for k in ID_KEYS if k in raw), f"prompt-{number}"))
        value = next((raw[k] for k in LIST_KEYS if k in raw), None)
        if isinstance(value, dict):
            return PromptRecord(name, accept={_mode(k): _steps(source, number, v) for k, v in value.items()})
        if isinstance(value, list):
            return PromptRecord(name, accept={mode: _steps(source, number, value)})
    raise BaselineError(f"{source} record {number} has no acceptance list: name it one of {', '.join(LIST_KEYS)}.")


def _mode(name: str) -> str:
    """Names that others use for the chain and for a tree of n nodes."""
    if name in ("chain", "linear", "dflash"):
        return "chain"
    digits = re.search(r"\d+", name)
    if digits is None:
        raise BaselineError(f"{name!r} names no acceptance mode: use chain or the number of nodes.")
    return digits.group()


def _steps(source: Path, number: int, raw: Any) -> list[int]:
    if not isinstance(raw, list) or not raw or not all(isinstance(n, int | float) and n >= 1 for n in raw):
        raise BaselineError(
            f"{source} record {number} must list tokens per step, each 1 or more, and has {str(raw)[:60]}."
        )
    return [int(n) for n in raw]


def _official(source: Path) -> tuple[list[PromptRecord], int]:
    """torch.save'd {"responses": [{"dflash": result, "ddtree_tb16": result, ...}], "block_size": n}."""
    import torch

    try:
        with torch.serialization.safe_globals([SimpleNamespace]):
            data = torch.load(source, map_location="cpu", weights_only=True)
        responses, block = data["responses"], int(data["block_size"])
    except FileNotFoundError as error:
        raise BaselineError(f"{source} does not exist: name the file that the script saved.") from error
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError or KeyError here
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise BaselineError(f"{source} is not a result of the DDTree script ({first_line[:120]}).") from error
    return [_official_record(number, response) for number, response in enumerate(responses)], block


def _official_record(number: int, response: dict[str, Any]) -> PromptRecord:
    record = PromptRecord(f"prompt-{number}")
    for name, result in response.items():
        tree = OFFICIAL_TREE.fullmatch(name)
        if name != "dflash" and tree is None:
            continue
        record.accept[tree.group(1) if tree else "chain"] = [int(n) for n in result.acceptance_lengths]
        record.prompt_ids = result.output_ids[0, : result.num_input_tokens].tolist()
        record.greedy_ids = result.output_ids[0, result.num_input_tokens :].tolist()
    return record
