"""Tasks: map risks from what was inspected, and sum up what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.graph.model import Action, Evidence, Json, TaskContext
from tasks.inspecting.advice import recommend
from tasks.inspecting.render import markdown, text
from tasks.inspecting.risks import map_risks, rules


@dataclass(frozen=True)
class Sources:
    """Keys of the inspect tasks whose outputs are put together."""

    sglang: str = "inspect-sglang"
    vllm: str = "inspect-vllm"
    model: str = "inspect-model"

    def document(self, ctx: TaskContext) -> dict[str, Json]:
        """The inspection document of this run; ValueError when the inspection of SGLang gave nothing."""
        document = {**ctx.output(self.vllm), **ctx.output(self.model), **ctx.output(self.sglang)}
        if "sglang" not in document:
            raise ValueError(f"task {self.sglang} left no output; run it again")
        return {"vllm": None, "model": {}, **document}


class MapRisks(Action):
    """apply returns {risks: [...]}. Blockers are reported, not raised: the recommendation says what to do about them."""

    def __init__(self, sources: Sources | None = None) -> None:
        self.sources = sources or Sources()

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"rules": sorted(rule.id for rule in rules())}

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"risks": [risk.to_json() for risk in map_risks(self.sources.document(ctx))]}

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"risks": sorted((risk["severity"], risk["id"]) for risk in output["risks"])}

    def verify(self, ctx: TaskContext) -> Evidence:
        risks = self.apply(ctx)["risks"]
        counts = {level: sum(r["severity"] == level for r in risks) for level in ("blocker", "high", "medium", "low")}
        text = ", ".join(f"{count} {level}" for level, count in counts.items())
        return Evidence(
            f"{len(rules())} rules on the facts of this run", text, {**counts, "ids": [r["id"] for r in risks]}
        )


class Recommend(Action):
    """apply returns {recommendation, markdown, text}: markdown is the roadmap's section, text is for a terminal."""

    def __init__(self, sources: Sources | None = None, risks: str = "map-risks") -> None:
        self.sources, self.risks = sources or Sources(), risks

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        document = self.sources.document(ctx)
        risks = ctx.output(self.risks).get("risks", [])
        advice = recommend(document, risks)
        whole = {**document, "risks": risks, "recommendation": advice}
        return {"recommendation": advice, "markdown": markdown(whole), "text": text(whole)}

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {name: output["recommendation"][name] for name in ("decision", "engine", "nodes")}

    def verify(self, ctx: TaskContext) -> Evidence:
        advice = self.apply(ctx)["recommendation"]
        said = f"{advice['decision']}: {advice['next_steps'][0]}"
        return Evidence("the inspection of this run", said, {"decision": advice["decision"], "nodes": advice["nodes"]})
