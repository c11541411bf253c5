"""Record what a right and four broken engines write while they serve prompts of the shipped baselines.

    PYTHONPATH=engine ENGINE_PYTHON tests/baselines/record_traces.py tests/unit/traces

tests/unit/test_baseline_parity.py reads the recordings, so that the orchestrator's own path is tested without an engine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import conftest  # noqa: F401  (paths, and SGLang for CPU)
import pytest
from baselines.baseline import load_baseline
from harness import Engine, Pair, close_current
from test_engine import Break, compaction_off_by_one, slot_zero_masked, stale_hybrid_state, wrong_rope_depth

BASELINES = Path(__file__).resolve().parents[2] / "engine" / "baselines" / "data"
NODES, NEW_TOKENS, PROMPTS = 64, 40, 4
CASES: dict[str, tuple[str, Break | None]] = {
    "right_dense": ("tiny-dense", None),
    "right_hybrid": ("tiny-hybrid", None),
    "wrong_rope_depth": ("tiny-dense", wrong_rope_depth),
    "stale_hybrid_state": ("tiny-hybrid", stale_hybrid_state),
    "compaction_off_by_one": ("tiny-dense", compaction_off_by_one),
    "slot_zero_masked": ("tiny-dense", slot_zero_masked),
}


def record(pair: str, broken: Break | None, trace: Path) -> dict[str, Any]:
    """Samples and trace lines, the requests named as the deploy graph names them."""
    records = load_baseline(BASELINES / f"{pair}.json").prompts[:PROMPTS]
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine.start(Pair.find(pair), "DDTREE", NODES, {"SGLANG_DDTREE_TRACE": str(trace)})
        if broken is not None:
            broken(engine, patch)
        samples, names = [], {}
        for one in records:
            request = engine.add(one.prompt_ids, NEW_TOKENS)
            engine.run([request])
            engine.settle()
            names[request.rid] = f"baseline/{one.id}"
            ids = list(request.output_ids)[:NEW_TOKENS]
            samples.append({"prompt_id": one.id, "ids": ids, "steps": request.spec_verify_ct})
        close_current()
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    steps = [{**line, "rid": names[line["rid"]]} for line in lines if line.get("rid") in names]
    return {"pair": pair, "nodes": NODES, "max_tokens": NEW_TOKENS, "samples": samples, "trace": steps}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pair, broken) in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            found = record(pair, broken, Path(scratch) / "trace.jsonl")
        (folder / f"{name}.json").write_text(json.dumps(found) + "\n")
        print(name, len(found["trace"]), "steps", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
