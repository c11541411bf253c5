"""The acceptance oracle on a host: what chain and trees would accept there, before anything is deployed."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.bench.prompts import Prompt, set_hash
from orchestrator.errors import ExitCode, OrchestrateError, UsageError
from orchestrator.graph.model import Action, Evidence, Json, Outcome, Probe, TaskContext
from orchestrator.remote.longwork import LongWork
from orchestrator.wholefile import replacing
from tasks import baseline_files, host_tools, oracle_verdict
from tasks.inspecting.inspection import Inspection, inspect_host
from tasks.inspecting.shared import key_of
from tasks.knobs import knobs_of

LIMIT_S = 86400.0
DONE_OF_ALL = re.compile(r"(\d+)/(\d+) prompts")
# Weights, once; then the logits and features of a batch of prompts.
MEMORY_FACTOR, MEMORY_EXTRA = 1.15, 6 << 30


class RunOracle(Action):
    """Runs engine/baselines in the service's environment and keeps the result as an offline baseline of the pair.

    The work is a unit of its own: it outlives the connection, and finished prompts are not measured again.
    """

    def __init__(self, prompts: Sequence[Prompt], prompts_name: str, device: str | None) -> None:
        self._prompts, self._prompts_name, self._device = prompts, prompts_name, device

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        return {
            "prompts": set_hash(self._prompts), "budgets": list(knobs.budgets), "max_tokens": knobs.max_tokens,
            "policy": baseline_files.engine_policy(knobs.engine), "device": self._device,
        }  # fmt: skip

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "the oracle runs when it is asked")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        seen = inspect_host(ctx.host.transport, ctx.host.config, key_of(ctx.host))
        target, draft = _folders(seen)
        device = self._device or choose_device(seen)
        document = self._measure(ctx, _python(seen), target, draft, device)
        path = keep(ctx.host.state_dir, document)
        costs = {int(row["nodes"]): float(row["ratio_to_linear"]) for row in seen.predictions}
        found = oracle_verdict.rows(document, costs)
        said = oracle_verdict.basis(document["prompts"])[1]
        judged = {**oracle_verdict.verdict(found, knobs_of(ctx).margin, said), "n": len(document["prompts"])}
        ctx.artifact("baseline.json", json.dumps(document))
        oracle = {key: document[key] for key in ("target", "draft", "summary", "made_with", "policy", "new_tokens")}
        oracle |= {"basis": said, "baseline": str(path), "device": device, "prompts": len(document["prompts"])}
        return {"oracle": oracle, "rows": [row.to_json() for row in found], "verdict": judged}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("oracle")
        verdict, oracle = found["verdict"], found["oracle"]
        known = baseline_files.read(Path(oracle["baseline"]))
        if known.target != oracle["target"]["sha256"] or not known.prompts:
            raise ValueError(f"{oracle['baseline']} is not the baseline that was just made")
        worth = verdict["decision"] == "worth measuring"
        outcome = None if worth else Outcome(ExitCode.NOT_ADOPTED, verdict["reason"], skip=())
        checked = f"acceptance of {oracle['prompts']} prompts, offline on {oracle['device']}"
        return Evidence(checked, f"{verdict['decision']}: {verdict['reason']}", {"verdict": verdict}, outcome=outcome)

    def _measure(self, ctx: TaskContext, python: str, target: str, draft: str, device: str) -> dict[str, Any]:
        session = ctx.host
        arguments = self._arguments(ctx, target, draft, device)
        key = hashlib.sha256(json.dumps([arguments, set_hash(self._prompts)]).encode()).hexdigest()[:12]
        folder = posixpath.join(host_tools.tools_folder(session), f"oracle-{key}")
        prompts, out = posixpath.join(folder, "prompts.jsonl"), posixpath.join(folder, "baseline.json")
        session.transport.run(["mkdir", "-p", folder], sudo=session.privileged, check=True)
        session.transport.put_bytes(as_jsonl(self._prompts), prompts, sudo=session.privileged)
        work = session.work(f"oracle-{key}")
        env = {"PYTHONPATH": host_tools.send_baselines(session), "HF_HUB_OFFLINE": "1"}
        if session.config.engine == "sglang-cpu":
            # The small pairs gain nothing from threads, whose barriers stall beside a busy engine.
            env["OMP_NUM_THREADS"] = "1"
        command = host_tools.command(python, "oracle", *arguments, "--prompts", prompts, "--out", out)
        # The live service comes first wherever both want the processor.
        work.start(["nice", "-n", "5", *command], env=env, cwd="/")
        code, said = _wait(ctx, work)
        work.forget()
        if code:
            sentence = said.replace(prompts, self._prompts_name).replace("--new-tokens", "--max-tokens")
            raise (UsageError if code == host_tools.BAD_INPUT else OrchestrateError)(
                sentence if code == host_tools.BAD_INPUT else f"The oracle on {session.name!r} failed: {sentence}"
            )
        content = session.transport.get_bytes(out, sudo=session.privileged)
        session.transport.run(["rm", "-rf", folder], sudo=session.privileged, check=True)
        document: dict[str, Any] = json.loads(content)
        return document

    def _arguments(self, ctx: TaskContext, target: str, draft: str, device: str) -> list[str]:
        knobs = knobs_of(ctx)
        policy = baseline_files.engine_policy(knobs.engine)
        return [
            "--target", target, "--draft", draft, "--budgets", ",".join(map(str, knobs.budgets)),
            "--new-tokens", str(knobs.max_tokens), "--top-k", f"{policy['k']:.0f}",
            "--spine-depth", f"{policy['spine_depth']:.0f}", "--off-spine-penalty", str(policy["off_spine_penalty"]),
            "--device", device, "--dtype", "float32" if device == "cpu" else "bfloat16",
        ]  # fmt: skip


def _wait(ctx: TaskContext, work: LongWork) -> tuple[int, str]:
    """(exit code, last line); a run that is cancelled stops the work, whose finished prompts stay on the host."""
    last = ["it said nothing"]

    def on_line(line: str) -> None:
        last[0] = line.strip() or last[0]
        share = DONE_OF_ALL.search(line)
        ctx.progress(line.strip()[:150], *(float(n) for n in share.groups()) if share else (None, None))

    try:
        return work.wait(LIMIT_S, on_line=on_line, check_cancelled=ctx.check_cancelled), last[0]
    except OrchestrateError:
        raise
    except BaseException:
        work.forget()
        raise


def _folders(seen: Inspection) -> tuple[str, str]:
    model = seen.model
    for role in ("target", "draft"):
        if not model.get(role):
            why = "; ".join(model.get("notes", [])) or f"no {role} is named by the service or in hosts.yaml"
            raise OrchestrateError(f"{seen.subject}: the oracle needs the {role} model ({why}).")
    return model["target"]["path"], model["draft"]["path"]


def _python(seen: Inspection) -> str:
    service = (seen.sglang or {}).get("service") or {}
    if not service.get("interpreter"):
        raise OrchestrateError(
            f"{seen.subject}: no SGLang service runs there whose environment the oracle could use; start it."
        )
    return str(service["interpreter"])


def choose_device(seen: Inspection) -> str:
    """cpu on a host without a GPU, else the GPU with the most free memory; OrchestrateError when none has enough."""
    gpus = seen.hardware["gpu"]["gpus"]
    if not gpus:
        return "cpu"
    weights = sum(int(seen.model[role].get("weight_bytes") or 0) for role in ("target", "draft"))
    needed = int(weights * MEMORY_FACTOR) + MEMORY_EXTRA
    best = max(gpus, key=lambda gpu: int(gpu["free_bytes"]))
    if int(best["free_bytes"]) >= needed:
        return f"cuda:{best['index']}"
    raise OrchestrateError(
        f"{seen.subject}: no GPU has {needed / 2**30:.0f} GiB free beside what runs ({int(best['free_bytes']) / 2**30:.0f} at "
        "most); free one, or give --device cpu, which takes long."
    )


def as_jsonl(prompts: Sequence[Prompt]) -> bytes:
    """The prompts as engine/baselines reads them."""
    lines = []
    for prompt in prompts:
        given = {"text": prompt.text, "messages": prompt.messages, "input_ids": prompt.input_ids}
        filled = {name: value for name, value in given.items() if value}
        lines.append(json.dumps({"id": prompt.id, "category": prompt.category, **filled}) + "\n")
    return "".join(lines).encode()


def keep(home: Path, document: Mapping[str, Any]) -> Path:
    """Keep the document among the user's baselines, where every later deployment of the pair finds it."""
    facts = [document[key] for key in ("target", "draft", "policy", "budgets", "new_tokens")]
    facts.append([prompt["prompt_ids"] for prompt in document["prompts"]])
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    folder = home / baseline_files.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"oracle-{key}.json"
    with replacing(path) as part:
        part.write_text(json.dumps(document), encoding="utf-8")
    return path
