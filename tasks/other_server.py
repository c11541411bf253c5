"""A tree server that somebody started on the host by hand: recognised, measured as the second arm, and left running."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.bench.arm import Arm, ArmFactory
from orchestrator.bench.prompts import Prompt, plain_text
from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts.session import TREE_SERVER_KEY, HostSession
from orchestrator.openai.client import Client
from orchestrator.openai.records import Api, whole_number
from orchestrator.remote.processes import ProcessFacts, listening_on, processes
from tasks.benchmark import BenchBudgets, gpu_sampler
from tasks.knobs import knobs_of

FIND = "find-server"


@dataclass(frozen=True)
class OtherServer:
    """The server as it runs. native: it speaks SGLang's own interface; nodes: of its tree, None when it does not say."""

    port: int
    pid: int
    start_time: str
    described: str
    native: bool
    model: str
    nodes: int | None

    @property
    def sentence(self) -> str:
        kind = "SGLang DDTREE" if self.native else "stand-alone OpenAI-compatible"
        return f"{kind} server on port {self.port} ({self.described})"

    def to_json(self) -> dict[str, Json]:
        return dict(vars(self))


def find_server(session: HostSession, wanted: str) -> OtherServer:
    """The server that a port or a unit of the host stands for; an error for one that can't be the tree's arm."""
    process, port = _by_port(session, int(wanted)) if wanted.isdecimal() else _by_unit(session, wanted)
    lives = [(one.unit, one.config.service.port) for one in session.replicas()]
    if any(port == live or process.unit == unit for unit, live in lives):
        raise UsageError(
            f"tree_server={wanted} is the live service of {session.name!r}, which is the linear arm; name another one."
        )
    with session.http(port, TREE_SERVER_KEY) as url, Client(url) as client:
        models, info = client.models(), client.server_info()
    if not models:
        raise OrchestrateError(
            f"What listens on port {port} of {session.name!r} ({process.described}) lists no model at /v1/models, so it is "
            "no OpenAI-compatible server, or is still loading; correct tree_server, or wait."
        )
    algorithm = str(info.get("speculative_algorithm") or "none").upper()
    if info and algorithm != "DDTREE":
        raise UsageError(f"The server on port {port} of {session.name!r} serves {algorithm}, and DDTREE is needed.")
    nodes = (whole_number(info.get("speculative_num_draft_tokens")) or 1) - 1
    return OtherServer(
        port, process.pid, process.start_time, process.described, bool(info), models[0], nodes if nodes > 0 else None
    )


def _by_port(session: HostSession, port: int) -> tuple[ProcessFacts, int]:
    found = listening_on(session.transport, port, sudo=session.privileged)
    if not found:
        raise OrchestrateError(
            f"Nothing that may be seen listens on port {port} of {session.name!r}; start the server, or correct tree_server."
        )
    return found[0], port


def _by_unit(session: HostSession, unit: str) -> tuple[ProcessFacts, int]:
    pid = session.services.status(unit).main_pid
    found = processes(session.transport, [pid], sudo=session.privileged) if pid else []
    if not found:
        raise OrchestrateError(
            f"The unit {unit!r} does not run on {session.name!r}; start it, or give tree_server a port."
        )
    told = re.search(r"--port[= ](\d+)", " ".join(found[0].cmdline))
    if told is None:
        raise UsageError(
            f"The command line of {unit!r} on {session.name!r} names no --port; give tree_server the port."
        )
    return found[0], int(told[1])


def server_of(ctx: TaskContext) -> OtherServer:
    """The server that this run is about, as it was a few seconds ago at most."""
    wanted = str(knobs_of(ctx).tree_server)
    found: OtherServer = ctx.host.recent.get(f"tree server {wanted}", lambda: find_server(ctx.host, wanted))
    return found


def nodes_of_server(ctx: TaskContext, server: OtherServer) -> int:
    """The budget that the rows are about: the server's own word, or that of whoever started it."""
    given, told = ctx.settings.get("budgets"), server.nodes
    named = knobs_of(ctx).budgets if given else ()
    if told is None and len(named) != 1:
        raise UsageError(
            f"The server on port {server.port} does not say how many nodes its tree has; say it with --budgets NODES."
        )
    if told is not None and named not in ((), (told,)):
        raise UsageError(f"The server on port {server.port} has {told} tree nodes, not {given}; leave --budgets out.")
    return told if told is not None else named[0]


class FindServer(Action):
    """Who serves at the named port or unit; looks only."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        server = server_of(ctx)
        return {"port": server.port, "pid": server.pid, "start_time": server.start_time}

    def probe(self, ctx: TaskContext) -> Probe:
        server = server_of(ctx)
        nodes_of_server(ctx, server)
        return Probe(True, f"{server.sentence} is the second arm; it is not stopped", server.to_json())

    def verify(self, ctx: TaskContext) -> Evidence:
        server = server_of(ctx)
        said = f"{server.sentence}, model {server.model}, {nodes_of_server(ctx, server)} tree nodes; it is not stopped"
        return Evidence("who listens there and what it says of itself", said, server.to_json())


class BenchServer(BenchBudgets):
    """Linear against that server: the same blocks, rules and losslessness, and nothing is started or stopped."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        server = server_of(ctx)
        seen = [server.port, server.pid, server.start_time, server.model]
        return {**super().inputs(ctx), "budgets": list(self.budgets(ctx)), "tree_server": seen}

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        server, load = server_of(ctx), knobs_of(ctx).loads[-1]
        return (
            Change("process", ctx.host.unit, f"gets at most {load} requests at once, if it serves linear"),
            Change(
                "process",
                f"pid {server.pid} on port {server.port}",
                f"the server that was started by hand gets at most {load} requests at once; it is not stopped",
            ),
        )

    def budgets(self, ctx: TaskContext) -> tuple[int, ...]:
        return (nodes_of_server(ctx, server_of(ctx)),)

    @contextlib.contextmanager
    def trees(self, ctx: TaskContext) -> Iterator[Callable[[int], ArmFactory]]:
        yield lambda budget: lambda: _arm(ctx, budget)

    def _prompts(self, ctx: TaskContext) -> list[Prompt]:
        """As text for a server without SGLang's interface: it has no chat template that both arms could share."""
        prompts = super()._prompts(ctx)
        if ctx.output(FIND)["native"]:
            return prompts
        return [p if p.input_ids else Prompt(id=p.id, category=p.category, text=plain_text(p)) for p in prompts]

    def beside(self, ctx: TaskContext) -> tuple[int, ...]:
        return (int(ctx.output(FIND)["pid"]),)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        _require_same(ctx)
        return {**super().apply(ctx), "tree_server": ctx.output(FIND)["described"]}

    def verify(self, ctx: TaskContext) -> Evidence:
        proof, server = super().verify(ctx), ctx.output(FIND)
        _require_same(ctx)
        said = f"{proof.output}; the server on port {server['port']} goes on as pid {server['pid']}"
        return Evidence(proof.checked, said, {**proof.data, "server": dict(server)}, proof.expires_after_s)


@contextlib.contextmanager
def _arm(ctx: TaskContext, budget: int) -> Iterator[Arm]:
    """Its steps can't be seen without SGLang's interface: the rule against plain decoding then says nothing of it."""
    server, session = ctx.output(FIND), ctx.host
    with session.http(int(server["port"]), TREE_SERVER_KEY) as url:
        yield Arm(
            f"ddtree-{budget}",
            url,
            budget,
            model=str(server["model"]),
            identity=lambda: _holders(session, int(server["port"])),
            sample=gpu_sampler(ctx, (int(server["pid"]),)),
            flush=False,
            speculative=bool(server["native"]),
            api=Api.NATIVE if server["native"] else Api.COMPLETIONS,
        )


def _holders(session: HostSession, port: int) -> str:
    """Who listens on a port: another text after a restart."""
    found = listening_on(session.transport, port, sudo=session.privileged)
    return ", ".join(f"pid {one.pid} since {one.start_time}" for one in found)


def _require_same(ctx: TaskContext) -> None:
    server: Any = ctx.output(FIND)
    now = _holders(ctx.host, int(server["port"]))
    if f"pid {server['pid']} since {server['start_time']}" not in now:
        raise OrchestrateError(
            f"The server on port {server['port']} of {ctx.host.name!r} was pid {server['pid']} and is {now or 'gone'} now; "
            "start a new run once it stays, as this one is about the other process."
        )
