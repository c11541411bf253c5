"""hosts.yaml as models: what a host is, where its service lives, what to serve. Annotations are the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from orchestrator.hosts import secrets

Port = Annotated[int, Field(ge=1, le=65535)]
SecretRef = Annotated[str, Field(pattern=r"^(env|file|cmd):.+")]
STAND_IN = 4  # ports after the first side port, which canary and measurements use before
SHIPPED_MODELS = ("tiny-hybrid", "tiny-dense")


class Section(BaseModel):
    """A part of hosts.yaml; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Sudo(Section):
    """How root is reached: nopasswd (sudo -n), askpass (password from a reference, never an argument), or none."""

    method: Literal["nopasswd", "askpass", "none"] = "nopasswd"
    password: SecretRef | None = None

    @model_validator(mode="after")
    def _askpass_needs_password(self) -> Sudo:
        if self.method == "askpass" and self.password is None:
            raise ValueError("sudo method askpass needs `password`, a reference like env:SUDO_PASSWORD")
        return self


class Service(Section):
    """The unit that serves: its driver, name, port, and the launch arguments added to the engine's own.

    stand_in: whether an engine on a side port answers while the unit restarts. `auto`: where the host can redirect and
    filters no incoming connections; `always`: its filter lets the side port through, too. drain_timeout_s: how long the
    last connections of an engine that is replaced may take then.
    """

    driver: Literal["systemd", "process"] = "systemd"
    unit: str = "sglang.service"
    port: Port = 30000
    canary_port: Port | None = None  # default: the port after the service's, or after its replicas'
    args: tuple[str, ...] = ()
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    stop_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    stand_in: Literal["auto", "always", "never"] = "auto"
    drain_timeout_s: Annotated[float, Field(ge=0)] = 120.0

    @field_validator("args", mode="before")
    @classmethod
    def _args_are_strings(cls, value: Any) -> Any:
        return tuple(str(item) for item in value) if isinstance(value, list | tuple) else value

    @field_validator("args")
    @classmethod
    def _args_hold_no_secret(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for here, following in zip(value, (*value, "")[1:], strict=True):
            match = secrets.SECRET_FLAG.match(here)
            given = match and (match.group("value") or (following if not following.startswith("-") else ""))
            if given and not secrets.is_reference(given):
                raise ValueError(
                    f"{here.split('=')[0]} carries a secret value; put a reference under `secrets` instead"
                )
        return value


class Container(Section):
    """A container on the address: commands run inside it through `pct exec`."""

    kind: Literal["proxmox-ct"]
    id: Annotated[int, Field(ge=100)]


class Gpus(Section):
    count: Annotated[int, Field(ge=0)] = 1
    arch: Annotated[str, Field(pattern=r"^sm_\d{2,3}$")] | None = None
    tp: Annotated[int, Field(ge=1)] = 1
    canary: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _fit(self) -> Gpus:
        if self.count and self.tp > self.count:
            raise ValueError(f"tp {self.tp} needs more GPUs than count {self.count}")
        beyond = [index for index in self.canary if not 0 <= index < max(self.count, 1)]
        if beyond:
            raise ValueError(f"canary GPU {beyond[0]} is not below count {self.count}")
        return self


class Router(Section):
    """SGLang's own router (package sglang-router) in front of the replicas; its unit is started like any service.

    It must know the replicas as http://WORKERS:PORT. drain_timeout_s: how long a replica's last requests may take.
    rejoin_after_s: after how long without a word from its operator the host puts a replica back that was taken out.
    """

    enabled: bool = False
    port: Port = 8000
    unit: str | None = None  # default: sglang-router.service, or sglang-router on the embedded host
    workers: str = "127.0.0.1"
    policy: Literal["random", "round_robin", "cache_aware", "power_of_two"] = "cache_aware"
    drain_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    rejoin_after_s: Annotated[float, Field(ge=2)] = 60.0


class Notify(Section):
    """Called when a run ends: a webhook (reference) or a command."""

    webhook: SecretRef | None = None
    command: tuple[str, ...] = ()


class ModelPaths(Section):
    """Target and draft folders on the host, and the draft's block size."""

    target: str
    draft: str
    block: Annotated[int, Field(ge=2, le=64)] = 16


class DDTree(Section):
    """Tree settings: `nodes` is B, the non-root nodes; the verify width is T = B + 1."""

    nodes: Annotated[int, Field(ge=1, le=1024)] = 64
    adaptive: bool = False
    topk: Annotated[int, Field(ge=1, le=64)] | None = None
    spine_depth: Annotated[int, Field(ge=0, le=63)] = 0
    off_spine_penalty: Annotated[float, Field(ge=0)] = 0.0


class HostConfig(Section):
    """One host after defaults were applied. `name` is its key in hosts.yaml."""

    name: str
    transport: Literal["ssh", "embedded"] = "ssh"
    address: str | None = None
    user: str | None = None
    port: Port = 22
    jump: str | None = None
    identity_file: str | None = None
    host_key: Literal["strict"] = "strict"
    connect_timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    idle_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    sudo: Sudo = Sudo()
    root: str = "/opt/ddtree"
    service_driver: Literal["systemd", "process"] | None = None
    service: Service = Service()
    engine: Literal["sglang", "sglang-cpu"] = "sglang"
    container: Container | None = None
    gpus: Gpus | None = None
    replicas: Annotated[int, Field(ge=1)] = 1
    router: Router = Router()
    notify: Notify = Notify()
    model: str | ModelPaths
    ddtree: DDTree = DDTree()
    secrets: dict[str, SecretRef] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        """`service_driver: process` is the short form of `service: {driver: process}`."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        service = data.get("service")
        short = data.get("service_driver")
        if data.get("transport") == "embedded":
            short = short or (service or {}).get("driver") or "process"
            service = {"unit": "sglang", **(service or {})}
            data.setdefault("root", "opt/ddtree")
            data.setdefault("sudo", {"method": "none"})
        if short is not None and isinstance(service, dict | None):
            data["service"] = {**(service or {}), "driver": short}
        return data

    @model_validator(mode="after")
    def _possible(self) -> HostConfig:
        if self.transport == "ssh" and not self.address:
            raise ValueError("an ssh host needs `address` (or an ssh_config alias there)")
        if self.transport == "embedded" and (self.address or self.jump or self.container):
            raise ValueError("an embedded host is this machine: address, jump and container do not apply")
        if self.transport == "embedded" and self.service.driver != "process":
            raise ValueError("an embedded host has no systemd: service_driver must be process")
        if isinstance(self.model, str) and self.model not in SHIPPED_MODELS:
            known = ", ".join(SHIPPED_MODELS)
            raise ValueError(
                f"model {self.model!r} is not a shipped pair ({known}) nor a mapping with target and draft"
            )
        if isinstance(self.model, str) and self.engine != "sglang-cpu":
            raise ValueError("a shipped pair is for engine sglang-cpu; give `model: {target: …, draft: …}` on the host")
        if self.gpus and self.replicas * self.gpus.tp > max(self.gpus.count, 1):
            raise ValueError(f"{self.replicas} replicas x tp {self.gpus.tp} need more than {self.gpus.count} GPUs")
        if self.service.port <= self.side_port < self.service.port + self.replicas:
            raise ValueError("service.canary_port must differ from service.port and from the replicas' ports")
        if self.router.enabled and self.router.port in range(self.service.port, self.service.port + self.replicas):
            raise ValueError("router.port must differ from the replicas' ports, which follow service.port")
        if self.replicas > 1 and not self.router.enabled:
            raise ValueError("several replicas are rolled behind a router: add `router: {enabled: true, port: …}`")
        if self.router.enabled and self.replicas < 2:
            raise ValueError("a router needs at least two replicas, so that one may leave without a failed request")
        return self

    @property
    def side_port(self) -> int:
        """The first port of side engines; by default the one after the service's, or after the replicas'."""
        return self.service.canary_port or min(self.service.port + self.replicas, 65535)

    @property
    def stand_in_port(self) -> int:
        """The port of the engine that stands in; the one after it leads past the redirection to the service itself."""
        return self.side_port + STAND_IN

    @property
    def router_unit(self) -> str:
        default = "sglang-router.service" if self.service.driver == "systemd" else "sglang-router"
        return self.router.unit or default

    def of_replica(self, number: int) -> HostConfig:
        """This host as its replica `number` (from 0) sees it: `sglang.service` becomes `sglang-0.service`, and
        `sglang@.service` its instance `sglang@0.service`; the ports follow service.port."""
        if self.replicas == 1:
            return self
        stem, dot, kind = self.service.unit.partition(".service")
        unit = f"{stem}{'' if stem.endswith('@') else '-'}{number}{dot}{kind}"
        changed = {"unit": unit, "port": self.service.port + number, "canary_port": self.side_port}
        return self.model_copy(update={"service": self.service.model_copy(update=changed)})


class Inventory(Section):
    """All of hosts.yaml: hosts by name (defaults applied) and groups of names."""

    hosts: dict[str, HostConfig]
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    path: Path | None = None
