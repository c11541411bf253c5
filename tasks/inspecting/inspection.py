"""Puts an inspection together: host or folder in, one JSON document out. Nothing is changed anywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.transport.base import SudoUnavailable, Transport
from tasks.inspecting import engine_part, hardware_part, model_part
from tasks.inspecting.advice import recommend
from tasks.inspecting.probe import Ask, AsRoot, host_facts, read_all, reader
from tasks.inspecting.risks import Risk, map_risks
from tasks.inspecting.serving import Serving, choose


@dataclass(frozen=True)
class Inspection:
    """What was found. The parts are JSON objects in the shape of the contract's `inspect`."""

    subject: str
    kind: str  # host or folder
    sglang: dict[str, Any] | None
    vllm: dict[str, Any] | None
    model: dict[str, Any]
    hardware: dict[str, Any] = field(default_factory=dict)
    other_engines: list[dict[str, Any]] = field(default_factory=list)
    setting: dict[str, Any] = field(default_factory=dict)
    budgets: list[dict[str, Any]] = field(default_factory=list)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    not_seen: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def document(self) -> dict[str, Any]:
        """Everything but risks and recommendation, which are drawn from it."""
        return {
            "subject": self.subject,
            "kind": self.kind,
            "sglang": self.sglang,
            "vllm": self.vllm,
            "model": self.model,
            "hardware": self.hardware,
            "other_engines": self.other_engines,
            "setting": self.setting,
            "budgets": self.budgets,
            "predictions": self.predictions,
            "not_seen": self.not_seen,
            "seconds": self.seconds,
        }

    @property
    def risks(self) -> list[Risk]:
        return map_risks(self.document)

    def to_json(self) -> dict[str, Any]:
        risks = [risk.to_json() for risk in self.risks]
        return {**self.document, "risks": risks, "recommendation": recommend(self.document, risks)}


@dataclass(frozen=True)
class Scope:
    """Which host settings inspect uses; read from a HostConfig, or given by hand."""

    name: str
    port: int = 30000
    unit: str | None = None
    roots: tuple[str, ...] = ()
    target: str | None = None
    draft: str | None = None
    tp: int = 1
    arch: str | None = None
    systemd: bool = True
    sudo: bool = False  # root may be used where this login sees too little

    @classmethod
    def of(cls, config: Any) -> Scope:
        """From orchestrator.hosts.inventory.HostConfig."""
        pair = config.model if not isinstance(config.model, str) else None
        gpus = config.gpus
        return cls(
            name=config.name,
            port=config.service.port,
            unit=config.service.unit,
            roots=(config.root,) if config.root.startswith("/") else (),
            target=pair.target if pair else None,
            draft=pair.draft if pair else None,
            tp=gpus.tp if gpus else 1,
            arch=gpus.arch if gpus else None,
            systemd=config.service.driver == "systemd",
            sudo=config.sudo.method != "none" and config.transport != "embedded",
        )


def inspect_host(transport: Transport, host_config: Any, key: str | None = None) -> Inspection:
    """Look at a host: two or three commands, no change. `host_config` is a HostConfig or a Scope; key: the service's.

    Raises HostError (unreachable, no python3). What could not be seen is listed in `not_seen`, never guessed.
    """
    scope = host_config if isinstance(host_config, Scope) else Scope.of(host_config)
    return inspect_seen(transport, scope, look(transport, scope, key=key))


def inspect_seen(transport: Transport, scope: Scope, seen: Look) -> Inspection:
    """The inspection of a host that was looked at a moment ago, in one more command: the files that the look led to."""
    started = time.monotonic()
    facts, serving, servers = seen
    hardware = hardware_part.read(facts, servers)
    arch = hardware["gpu"]["arch"] or scope.arch
    models, asks = model_part.asks(scope, serving), asks_of(scope, seen)
    files = read_all(reader(transport, facts), asks)
    target, draft, model = model_part.judge(models, files, serving)
    sglang = engine_part.sglang(files.get("sglang"), facts, serving, arch, bool(target and target.hybrid))
    setting, budgets, predictions = model_part.figures(scope, serving, hardware, target, draft)
    return Inspection(
        subject=scope.name,
        kind="host",
        sglang=sglang,
        vllm=engine_part.vllm(files.get("vllm"), facts, servers),
        model=model,
        hardware=hardware,
        other_engines=engine_part.unsupported(servers),
        setting=setting,
        budgets=budgets,
        predictions=predictions,
        not_seen=not_seen(facts, serving, scope),
        seconds=round(facts["look_s"] + time.monotonic() - started, 3),
    )


# (raw facts, the service in question, all servers)
Look = tuple[dict[str, Any], Serving | None, list[Serving]]


def asks_of(scope: Scope, seen: Look) -> dict[str, Ask]:
    """The files that a look leads to: of both models, and of the engines' packages."""
    facts, serving, servers = seen
    packages = {"sglang": engine_part.sglang_ask(facts, serving), "vllm": engine_part.vllm_ask(facts, servers)}
    return {**model_part.asks(scope, serving), **{name: ask for name, ask in packages.items() if ask}}


def look(
    transport: Transport, scope: Scope, skip: Sequence[str] = (), *, as_root: bool = False, key: str | None = None
) -> Look:
    """Processes, copies, GPUs and system as they are now; `skip` as in host_side/main.py.

    Where the service belongs to another user and hosts.yaml allows sudo, root looks instead, which still changes
    nothing. `as_root` in the facts says so, `sudo_refused` why it could not be. With as_root, root looks at once.
    """
    started = time.monotonic()
    facts = {**_facts(transport, scope, skip, as_root, key), "look_s": time.monotonic() - started}
    serving, servers = choose(facts, scope.port, scope.unit)
    return facts, serving, servers


def _facts(transport: Transport, scope: Scope, skip: Sequence[str], as_root: bool, key: str | None) -> dict[str, Any]:
    options = {
        "port": scope.port,
        "ports": [scope.port],
        "unit": scope.unit if scope.systemd else None,
        "paths": [p for p in (*scope.roots, scope.target, scope.draft) if p],
        "extra_roots": list(scope.roots),
        "skip": list(skip),
    }
    refused = None
    facts = {} if as_root else host_facts(transport, {**options, "stop_if_hidden": scope.sudo}, key=key)
    if as_root or (scope.sudo and _hidden(facts, scope)):
        try:
            return {**host_facts(AsRoot(transport), options, key=key), "as_root": True}
        except SudoUnavailable as error:
            refused = str(error)
    if not facts or facts.get(
        "stopped"
    ):  # root was refused, or it stopped early for a server that is not the one in question
        facts = host_facts(transport, options, key=key)
    return {**facts, "sudo_refused": refused}


def _hidden(facts: Mapping[str, Any], scope: Scope) -> bool:
    """The service, or how it was started, can't be seen by this login."""
    serving, _ = choose(facts, scope.port, scope.unit)
    return serving.env is None if serving else scope.port in facts["processes"]["listening"]


def not_seen(facts: Mapping[str, Any], serving: Serving | None, scope: Scope) -> list[str]:
    """What stayed hidden from this login, each as a sentence."""
    notes = [f"root could not be used: {facts['sudo_refused']}"] if facts.get("sudo_refused") else []
    hidden = facts["processes"]["hidden"]
    if hidden:
        notes.append(
            f"{hidden} server processes belong to another user: their environment and folders are hidden without sudo"
        )
    if serving and serving.env is None:
        notes.append(
            f"the environment of pid {serving.pid} is hidden: PYTHONPATH and plug-in lists may differ from what is shown"
        )
    if serving and serving.engine == "sglang" and not serving.resolved:
        notes.append(
            f"the server on port {serving.port} did not tell its resolved arguments: only the command line is shown"
        )
    if serving is None and scope.port in facts["processes"]["listening"]:
        notes.append(f"something listens on port {scope.port}, but its process is hidden from this login")
    if facts["copies_truncated"]:
        notes.append("the search for other copies was cut short: the list may be incomplete")
    return notes


def inspect_folder(path: str | Path) -> Inspection:
    """Look at a folder: site-packages, an unpacked wheel, a package or a model. FileNotFoundError, or ValueError if it is none."""
    started = time.monotonic()
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; name site-packages, an unpacked wheel or a model's folder")
    sglang, vllm = engine_part.folder_sglang(folder), engine_part.folder_vllm(folder)
    model = model_part.read_folder(folder)
    if not (sglang or vllm or model):
        raise ValueError(
            f"{folder} holds neither sglang nor vllm nor a model's config.json; name the folder above the package"
        )
    return Inspection(
        subject=str(folder),
        kind="folder",
        sglang=sglang,
        vllm=vllm,
        model=model,
        seconds=round(time.monotonic() - started, 3),
    )
