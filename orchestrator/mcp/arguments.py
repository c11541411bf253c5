"""What each tool takes: checked strictly, and shown to agents as JSON Schema."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import UsageError

NAME = 200  # characters that a name may have: an error repeats it
Host = Annotated[str | None, Field(max_length=NAME, description="Host of the inventory; default: the first one.")]
RunId = Annotated[str | None, Field(max_length=NAME, description="The run, or how its id begins; default: the newest.")]
PlanId = Annotated[
    str, Field(min_length=1, max_length=NAME, description="The plan_id that the tool `plan` of this server gave.")
]
Owner = Annotated[str | None, Field(min_length=1, max_length=200, description="Who; default: user and machine.")]


class Arguments(BaseModel):
    """Unknown fields are refused: a misspelt one would otherwise change what is done without a word."""

    model_config = ConfigDict(extra="forbid")


class PlanArguments(Arguments):
    graph: str = Field(
        max_length=NAME, description="deploy-ddtree, deploy-dflash, rollback, inspect, smoke, bench, or an own graph."
    )
    host: Host = None
    settings: dict[str, str] = Field(default={}, description="Settings of the graph; for rollback: to = RELEASE.")
    reason: str | None = Field(default=None, description="Why a decision is overridden (with settings.decide).")


class RunArguments(Arguments):
    plan_id: PlanId
    resume: str | None = Field(
        default=None, max_length=NAME, description="Go on with this run of the same graph and host."
    )


class RollbackArguments(Arguments):
    plan_id: PlanId


class CancelArguments(Arguments):
    run_id: str = Field(min_length=1, max_length=NAME, description="The run to stop after its current effect.")
    reason: str = Field(default="cancelled by an agent", max_length=2000, description="Recorded with the run.")


class StatusArguments(Arguments):
    run_id: RunId = None
    host: str | None = Field(
        default=None, max_length=NAME, description="Instead of a run: ask this host what it serves now."
    )
    wait_s: float = Field(default=0.0, ge=0, le=300, description="Wait this long for the run to end, in seconds.")


class ExplainArguments(Arguments):
    task: str = Field(min_length=1, max_length=NAME, description="Key of the task.")
    run_id: RunId = None


class LogsArguments(Arguments):
    run_id: RunId = None
    task: str | None = Field(default=None, max_length=NAME, description="Only this task.")
    after: int | None = Field(default=None, ge=0, description="Events after this number; default: the newest ones.")
    limit: int = Field(default=200, ge=1, le=1000, description="How many events at most.")


class TodoArguments(Arguments):
    action: Literal["list", "ready", "add", "set", "claim", "next"] = "list"
    id: str | None = Field(default=None, max_length=NAME, description="For set and claim: the to-do.")
    content: str | None = Field(default=None, description="For add: what is to be done.")
    priority: Literal["high", "medium", "low"] = "medium"
    depends_on: list[str] = Field(default=[], description="For add: ids that come first.")
    status: Literal["pending", "in_progress", "completed", "cancelled"] | None = Field(
        default=None, description="For set; a task of a run is completed by its evidence only."
    )
    owner: Owner = None
    run_id: Annotated[RunId, Field(description="For list and ready: show the tasks of this run.")] = None


class NoteArguments(Arguments):
    kind: Literal["decision", "risk", "assumption"]
    text: str = Field(min_length=1, description="One decision, risk or assumption.")
    task: str | None = Field(default=None, max_length=NAME, description="Key of the task it is about.")
    author: Owner = None


class ReleasesArguments(Arguments):
    host: Host = None


class InspectArguments(Arguments):
    host: Host = None
    path: str | None = Field(default=None, description="A folder on this machine instead of a host.")


A = TypeVar("A", bound=Arguments)


def read_arguments(model: type[A], tool: str, given: object) -> A:
    """The checked arguments; UsageError is one sentence that names the first wrong field and what there is."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "arguments"
        unknown = first["type"] == "extra_forbidden"
        text = "is not known" if unknown else str(first["msg"])[:1].lower() + str(first["msg"])[1:]
        known = ", ".join(model.model_fields)
        raise UsageError(f"{tool}: {field}: {text}; it takes {known}.") from error
