"""The server on stdin and stdout: tools with their schemas, and documents with the exit codes of the command line."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from orchestrator import __version__
from orchestrator.documents import encode, envelope
from orchestrator.errors import ExitCode, OrchestrateError, UsageError
from orchestrator.mcp import arguments, changing, lists, reading
from orchestrator.mcp.desk import Desk
from orchestrator.store.jsontext import masked

INSTRUCTIONS = """\
Operates inference hosts through a persisted todo graph. To change a host: call plan, look at its changes, then give
its plan_id to run (or to rollback, for a plan of the graph rollback). A plan that no longer fits is refused: plan
again. A run goes on without this server; status and logs follow it. Results are documents with ok, exit_code and error.
"""


@dataclass(frozen=True)
class Tool:
    """A tool: what it says of itself, what it takes, and the function that carries it out."""

    takes: type[arguments.Arguments]
    does: Callable[[Desk, Any], dict[str, Any]]
    description: str
    reads_only: bool = True
    destructive: bool = False


TOOLS = {
    "plan": Tool(
        arguments.PlanArguments, changing.plan,
        "What a graph would change on a host now, and why, task by task. Gives the plan_id that run needs.",
    ),
    "run": Tool(
        arguments.RunArguments, changing.run,
        "Carry out a plan of this server, refused when it no longer fits. Returns the run_id while the run goes on.",
        reads_only=False, destructive=True,
    ),
    "rollback": Tool(
        arguments.RollbackArguments, changing.rollback,
        "Carry out a plan of the graph rollback: back to the last known-good linear release, proven.",
        reads_only=False, destructive=True,
    ),
    "cancel": Tool(
        arguments.CancelArguments, changing.cancel,
        "Ask a run to stop after its current effect; it can be resumed.", reads_only=False,
    ),
    "status": Tool(
        arguments.StatusArguments, reading.status,
        "How a run stands: its tasks with evidence, its verdict. Or, with host, what that host serves now.",
    ),
    "explain": Tool(
        arguments.ExplainArguments, reading.explain, "Why a task would run again, was skipped, or is blocked."
    ),
    "logs": Tool(arguments.LogsArguments, reading.logs, "Events and log lines; `after` = `last` reads on from there."),
    "todo": Tool(
        arguments.TodoArguments, lists.todo,
        "The graph as plain to-dos, beside to-dos of your own: list, ready, add, set, claim, next.", reads_only=False,
    ),
    "note": Tool(
        arguments.NoteArguments, lists.note, "Record a decision, risk or assumption; the roadmap shows it.",
        reads_only=False,
    ),
    "releases": Tool(arguments.ReleasesArguments, reading.releases, "Releases on a host: current, known-good, why."),
    "inspect": Tool(
        arguments.InspectArguments, reading.inspect,
        "Engines, models and hardware as they are on a host or in a folder, with risks and a recommendation.",
    ),
}  # fmt: skip


def serve(desk: Desk, *, debug: bool = False) -> None:
    """Answer one client until it closes stdin; nothing but the protocol is written to stdout meanwhile."""

    async def listed(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[described(name, tool) for name, tool in TOOLS.items()])

    async def called(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        work = partial(call, desk, params.name, params.arguments or {}, debug=debug)
        return as_result(await anyio.to_thread.run_sync(work))

    server = Server(
        "orchestrate", version=__version__, instructions=INSTRUCTIONS, on_list_tools=listed, on_call_tool=called
    )

    async def until_closed() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(until_closed)


def described(name: str, tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.reads_only, destructive_hint=tool.destructive, open_world_hint=False
    )
    return types.Tool(
        name=name, description=tool.description, input_schema=tool.takes.model_json_schema(), annotations=hints
    )


def call(desk: Desk, name: str, given: dict[str, Any], *, debug: bool = False) -> dict[str, Any]:
    """The document of a call, masked; errors are one sentence with the exit code of the command line."""
    try:
        tool = TOOLS.get(name)
        if tool is None:
            raise UsageError(f"There is no tool {name}; there are {', '.join(TOOLS)}.")
        body = tool.does(desk, arguments.read_arguments(tool.takes, name, given))
        document = envelope(ExitCode.DONE, body)
    except OrchestrateError as error:
        document = envelope(error.exit_code, {}, str(error))
    except Exception as error:
        if debug:
            traceback.print_exc()
        sentence = f"Unexpected {type(error).__name__}: {error} (start the server with --debug to see where)."
        document = envelope(ExitCode.FAILED_UNCHANGED, {}, sentence)
    plain = json.loads(encode(document))
    hidden: dict[str, Any] = masked(plain, desk.masker.mask)
    return hidden


def as_result(document: dict[str, Any]) -> types.CallToolResult:
    """The document as structured content; as text it is the same, or for an error its sentence."""
    text = document["error"] or encode(document)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=document,
        is_error=not document["ok"],
    )
