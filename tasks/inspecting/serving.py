"""Which process serves, with what: chosen from the probe's facts, and its command line read with its own options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.inspecting.flags import split_options
from tasks.inspecting.sglang_options import Option

UNSUPPORTED = {"tensorrt_llm": "TensorRT-LLM", "llama_cpp": "llama.cpp"}
STANDALONE = "standalone"
# Options that inspect needs whatever the version says about them.
BASIC = {
    name: Option((name,), name.lstrip("-").replace("-", "_"), "value")
    for name in (
        "--model-path", "--model", "--speculative-draft-model-path", "--speculative-draft-model", "--speculative-algorithm",
        "--speculative-num-draft-tokens", "--port", "--tp-size", "--tensor-parallel-size", "--tp", "--context-length",
        "--max-running-requests",
        "--max-total-tokens", "--mem-fraction-static", "--kv-cache-dtype", "--attention-backend", "--prefill-attention-backend",
        "--decode-attention-backend", "--speculative-config", "--page-size", "--api-key", "--served-model-name",
    )
}  # fmt: skip


@dataclass(frozen=True)
class Serving:
    """The service as it runs: process, unit, environment and options ({field: value}, resolved ones win)."""

    engine: str
    pid: int
    unit: str | None
    user_id: int
    port: int | None
    argv: list[str]
    interpreter: str
    prefix: str
    package: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    plugins: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    maps: Sequence[str] = ()
    limits: str = ""
    resolved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def standalone(self) -> str:
        """What a server that is a script of its own is called, '' for every other engine."""
        if self.engine != STANDALONE:
            return ""
        ddtree = "DDTREE" if "ddtree" in " ".join(self.argv).lower() else "OpenAI-compatible"
        where = f" on port {self.port}" if self.port else ""
        return f"stand-alone {ddtree} server{where} (pid {self.pid}{f', unit {self.unit}' if self.unit else ''})"

    @property
    def launch_args(self) -> list[str]:
        """The options of the command line, without interpreter and module."""
        words = self.argv
        for i, word in enumerate(words):
            if word == "-m" and i + 1 < len(words):
                return words[i + 2 :]
            if word == "serve" or word.endswith(("launch_server.py", "api_server.py")):
                return words[i + 1 :]
        return words[1:]

    def option(self, *fields: str, known: Mapping[str, Option] | None = None) -> Any:
        """The value in force of the first of these fields that has one; None when none is set."""
        for name in fields:
            if self.resolved.get(name) is not None:
                return self.resolved[name]
        given = self.given(known)
        return next((given[name] for name in fields if name in given), None)

    def given(self, known: Mapping[str, Option] | None = None) -> dict[str, Any]:
        """Options as given on the command line, by field name; True for a flag."""
        table = {**BASIC, **(known or {})}
        found: dict[str, Any] = {}
        for name, values, _ in split_options(self.launch_args, table):
            if name:
                key = table[name].field if name in table else name.lstrip("-").replace("-", "_")
                found[key] = True if not values else values[0] if len(values) == 1 else values
        return found

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm in force, in capitals; None when there is none."""
        value = self.option("speculative_algorithm")
        return str(value).upper() if value and str(value).upper() != "NONE" else None


def choose(facts: Mapping[str, Any], port: int, unit: str | None) -> tuple[Serving | None, list[Serving]]:
    """(the service of this host, all servers): by port first, then by unit, then the only one there is."""
    servers = [_serving(item, facts) for item in facts["processes"]["servers"]]
    by_port = [s for s in servers if s.port == port]
    by_unit = [s for s in servers if unit is not None and s.unit == unit]
    if by_port or by_unit:
        return (by_port or by_unit)[0], servers
    main = [s for s in servers if s.engine in ("sglang", "vllm")]
    return (main[0] if len(main) == 1 else None), servers


def _serving(item: Mapping[str, Any], facts: Mapping[str, Any]) -> Serving:
    python = item.get("python") or {}
    engine = item["engine"]
    ports = item.get("ports") or []
    asked = _port_option(item["argv"])
    port = asked if asked in ports or not ports else ports[0]
    info = facts.get("server_info") or {}
    data = info.get("data", {}) if info.get("port") == port else {}
    return Serving(
        engine=engine,
        pid=item["pid"],
        unit=item.get("unit"),
        user_id=item.get("uid", -1),
        port=port,
        argv=list(item["argv"]),
        interpreter=python.get("interpreter") or item.get("exe") or item["argv"][0],
        prefix=python.get("prefix", ""),
        package=python.get("packages", {}).get(engine, {}),
        distributions=python.get("distributions", {}),
        plugins=python.get("plugins", []),
        env=item.get("env"),
        cwd=item.get("cwd"),
        maps=item.get("maps", []),
        limits=item.get("limits") or "",
        resolved=data if isinstance(data, dict) and "denied" not in data else {},
    )


def _port_option(argv: Sequence[str]) -> int | None:
    for i, word in enumerate(argv):
        match = re.fullmatch(r"--port(?:=(\d+))?", word)
        if match:
            text = match[1] or (argv[i + 1] if i + 1 < len(argv) else "")
            return int(text) if text.isdigit() else None
    return None


def package_conflict(serving: Serving) -> str | None:
    """A sentence when shared objects of another copy than the resolved one are mapped into the process."""
    path = serving.package.get("path")
    others = [root for root in serving.maps if path and root.endswith("/" + serving.engine) and root != path]
    return f"{serving.engine} resolves to {path}, but the process has mapped {others[0]}" if others else None


def unused_copies(facts: Mapping[str, Any], used: Sequence[str]) -> list[dict[str, Any]]:
    """Copies of engine packages on the disk that no serving process imports."""
    return [dict(copy) for copy in facts["copies"] if copy["path"] not in used]
