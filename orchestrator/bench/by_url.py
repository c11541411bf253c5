"""A sweep of two servers that run already, given by their addresses: no inventory, no store, rows kept in a file."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.bench.arm import Arm
from orchestrator.bench.gpu import PROCESS_COMMAND, QUERY_COMMAND, parse_sample
from orchestrator.bench.lossless import Gap
from orchestrator.bench.prompts import Prompt, native_prompt
from orchestrator.bench.rows import HostSample, Row, fingerprint_of, loop_share, row_from_json
from orchestrator.bench.validity import LOOP_SHARE
from orchestrator.errors import UsageError
from orchestrator.openai.client import Client, engine_settings, server_identity
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.records import whole_number

ROWS = "rows.jsonl"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Switch = Callable[[int], object]  # makes the tree server draft with that many nodes from the next step on


@dataclass(frozen=True)
class Servers:
    """The two arms. trees: budget -> address; budget 0 stands for every budget that has no server of its own.

    switch: tells the server at trees[0] which of its widths to use; None when it holds one only.
    """

    linear: Endpoint
    trees: Mapping[int, Endpoint]
    flush: bool = True
    switch: Switch | None = None

    def open_linear(self) -> AbstractContextManager[Arm]:
        return self._arm("linear", self.linear, 0)

    def open_tree(self, budget: int) -> Callable[[], AbstractContextManager[Arm]]:
        return lambda: self._arm(f"ddtree-{budget}", self.tree(budget), budget)

    def tree(self, budget: int) -> Endpoint:
        """The server for a budget; UsageError when none was given."""
        url = self.trees.get(budget) or self.trees.get(0)
        if url is None:
            raise UsageError(f"No --tree-url was given for {budget} nodes; add --tree-url {budget}=URL.")
        return url

    def fingerprint(self) -> str:
        """Of all servers as they run now: rows of one that was restarted, or of another one, do not count."""
        told = {}
        for name, server in {"linear": self.linear, **{str(budget): url for budget, url in self.trees.items()}}.items():
            with Client(server) as client:
                info = client.server_info()
            told[name] = [server.root, server_identity(info), engine_settings(info)]
        return fingerprint_of(told)

    def switched(self, budget: int) -> bool:
        """Whether that budget's server must be told its width."""
        return self.switch is not None and budget > 0 and budget not in self.trees

    @contextmanager
    def _arm(self, name: str, server: Endpoint, budget: int) -> Iterator[Arm]:
        def change() -> None:
            if self.switch and self.switched(budget):
                self.switch(budget)

        yield Arm(
            name, server, budget, flush=self.flush, sample=local_sampler(server.url), switch=change
        )  # fmt: skip


def check_algorithms(servers: Servers, budgets: Sequence[int]) -> None:
    """UsageError unless one server is linear DFLASH, and the others are DDTREE with the budgets asked for."""
    _require(servers.linear, "DFLASH")
    for budget in budgets:
        url = servers.tree(budget)
        nodes = _require(url, "DDTREE")
        if nodes != budget and not servers.switched(budget):
            raise UsageError(
                f"{url} has {nodes} tree nodes and can't be told to have {budget} without --control-token; "
                f"measure --budgets {nodes}, or name a server for each budget (--tree-url {budget}=URL)."
            )


def _require(server: Endpoint, wanted: str) -> int:
    """The tree nodes of a server; UsageError when it serves another algorithm than `wanted`."""
    with Client(server) as client:
        info = client.server_info()
    found = str(info.get("speculative_algorithm") or "none").upper()
    if found != wanted:
        raise UsageError(f"{server} serves {found}, and {wanted} is needed there; exchange or correct the addresses.")
    return (whole_number(info.get("speculative_num_draft_tokens")) or 1) - 1


def judge_of(server: Endpoint | str) -> Gap:
    """Preferences of a server of the same target model that tells log-probabilities, for example one without drafts."""

    def gap(prompt: Prompt, prefix: Sequence[int], wanted: int, got: int) -> float | None:
        with Client(server) as client:
            return client.preference(native_prompt(client, prompt), prefix, wanted, got)

    return gap


def without_loops(servers: Servers, prompts: Sequence[Prompt], max_tokens: int) -> tuple[list[Prompt], list[str]]:
    """(prompts on which the linear server does not repeat itself, ids of the others), asked one at a time."""
    with Client(servers.linear) as client:
        outputs = {p.id: client.generate(native_prompt(client, p), max_tokens).output_ids for p in prompts}
    looping = [name for name, ids in outputs.items() if loop_share(ids) > LOOP_SHARE]
    return [p for p in prompts if p.id not in looping], looping


def local_sampler(url: str) -> Callable[[], HostSample | None] | None:
    """Reads this machine's GPUs when the server is on it; what computes there now belongs to the servers under test."""
    if urlsplit(url).hostname not in LOOPBACK or _run(QUERY_COMMAND) is None:
        return None
    own = {int(line.split(",")[0]) for line in (_run(PROCESS_COMMAND) or "").splitlines() if line[:1].isdigit()}
    return lambda: parse_sample(_run(QUERY_COMMAND) or "", _run(PROCESS_COMMAND) or "", own)


def _run(command: str) -> str | None:
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


class RowFile:
    """Rows as they come, one JSON object a line; those of an interrupted sweep in the same folder are read back."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / ROWS

    def read(self) -> list[Row]:
        """Whole lines only: the last one may have been cut off by whatever ended the sweep."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        try:
            return [row_from_json(json.loads(line)) for line in whole.splitlines()]
        except ValueError as exc:
            raise UsageError(f"{self.path} holds something else than rows of a sweep; give another --out.") from exc

    def append(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.to_json()) + "\n")
