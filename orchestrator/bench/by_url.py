"""A sweep of two servers that run already, given by their addresses: no inventory, no store, rows kept in a file."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.bench.arm import Arm
from orchestrator.bench.gpu import PROCESS_COMMAND, QUERY_COMMAND, parse_sample
from orchestrator.bench.rows import HostSample, Row, row_from_json
from orchestrator.errors import UsageError
from orchestrator.openai.client import Client

ROWS = "rows.jsonl"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Switch = Callable[[int], object]  # makes the tree server draft with that many nodes from the next step on


@dataclass(frozen=True)
class Servers:
    """The two arms. switch: None when the tree server holds one width only."""

    linear: str
    tree: str
    api_key: str | None = None
    flush: bool = True
    switch: Switch | None = None

    def open_linear(self) -> AbstractContextManager[Arm]:
        return self._arm("linear", self.linear, 0)

    def open_tree(self, budget: int) -> Callable[[], AbstractContextManager[Arm]]:
        return lambda: self._arm(f"ddtree-{budget}", self.tree, budget)

    @contextmanager
    def _arm(self, name: str, url: str, budget: int) -> Iterator[Arm]:
        def change() -> None:
            if self.switch and budget:
                self.switch(budget)

        yield Arm(
            name, url, budget, api_key=self.api_key, flush=self.flush, sample=local_sampler(url),
            switch=change,
        )  # fmt: skip


def check_algorithms(servers: Servers, budgets: Sequence[int]) -> None:
    """UsageError unless one server is linear DFLASH, and the other a DDTREE that can have these budgets."""
    for url, wanted in ((servers.linear, "DFLASH"), (servers.tree, "DDTREE")):
        with Client(url, servers.api_key) as client:
            info = client.server_info()
        found = str(info.get("speculative_algorithm") or "none").upper()
        if found != wanted:
            raise UsageError(f"{url} serves {found}, and {wanted} is needed there; exchange or correct the addresses.")
        width = info.get("speculative_num_draft_tokens")
        if wanted == "DDTREE" and servers.switch is None and [width] != [budget + 1 for budget in budgets]:
            raise UsageError(
                f"{url} has {int(width or 1) - 1} tree nodes and can't be told to have others without --control-token; "
                f"measure --budgets {int(width or 1) - 1}."
            )


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
