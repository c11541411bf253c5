"""The form of what the probe answers. A host may be broken or hostile: nothing is used before it has this form."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_UNPACKED = 256 << 20
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class Form(BaseModel):
    """An object with these fields at least."""

    model_config = ConfigDict(extra="allow")


class Package(Form):
    path: str
    kind: str
    version: str | None
    shadowed: list[str]


class Plugin(Form):
    group: str
    name: str
    value: str
    dist: str
    version: str
    site: str


class Python(Form):
    interpreter: str
    prefix: str
    venv: bool
    packages: dict[str, Package]
    distributions: dict[str, str]
    plugins: list[Plugin]


class Process(Form):
    pid: Whole
    ppid: Whole
    uid: Whole
    unit: str | None
    engine: str
    role: str
    argv: Annotated[list[str], Field(min_length=1)]


class Server(Process):
    exe: str | None
    cwd: str | None
    env: dict[str, str] | None
    ports: list[Whole] | None
    maps: list[str]
    limits: str | None
    python: Python | None = None


class Processes(Form):
    servers: list[Server]
    others: list[Process]
    hidden: Whole
    listening: list[Whole]


class Command(Form):
    exit: Whole
    out: str
    err: str


class Copy(Form):
    package: str
    path: str
    version: str | None


class Disk(Form):
    free_bytes: Whole
    total_bytes: Whole
    read_only: bool


class System(Form):
    os_release: str
    meminfo: str
    loadavg: str
    limits: str
    cmdline: str
    container_file: str
    cgroup: str
    nvidia_driver_file: str
    kernel: str
    machine: str
    glibc: str
    uid: Whole
    hostname: str
    python: str
    cpu_model: str
    cpu_flags: str
    cpus: Whole | None
    cpus_usable: Whole | None
    disks: dict[str, Disk | None]
    dockerenv: bool
    init_container: str | None
    proxmox_host: bool
    systemd_booted: bool


class ServerInfo(Form):
    port: Whole
    data: dict[str, Any]


class Facts(Form):
    """A look that stopped early tells the processes only."""

    processes: Processes
    stopped: bool = False
    system: System | None = None
    server_info: ServerInfo | None = None
    commands: dict[str, Command] = {}
    copies: list[Copy] = []
    copies_truncated: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Facts:
        missing = {"system", "commands", "copies", "copies_truncated"} - self.model_fields_set
        if (missing or self.system is None) and not self.stopped:
            raise ValueError(f"it lacks {', '.join(sorted(missing)) or 'system'}")
        return self


class Packed(Form):
    texts: dict[str, str]
    tensors: dict[str, tuple[str, list[Whole]]]
    tokenizer: dict[str, Any] | None
    weights: str | None


class Folder(Form):
    root: str
    exists: bool
    readable: bool
    missing: list[str]
    listing: list[tuple[str, Whole]]
    packed: str


class Answers(Form):
    answers: dict[str, Folder]


class Stamps(Form):
    stamps: dict[str, str]


class Malformed(ValueError):
    """The answer has another form; the text says where."""


def from_json(text: str) -> Any:
    """The value of a JSON text, with `?` for half surrogates, which no output could encode; ValueError or RecursionError."""
    value = json.loads(text)
    if "\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def parsed(text: str, form: type[Form]) -> dict[str, Any]:
    """A JSON text of this form as plain objects, `?` for what is no character; raises Malformed."""
    try:
        return form.model_validate(from_json(text)).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise Malformed(f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON, {error}") from None


def unpacked(text: str) -> Mapping[str, Any]:
    """What a folder's answer carries packed; raises Malformed."""
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(text), MAX_UNPACKED)
    except (ValueError, zlib.error) as error:
        raise Malformed(f"packed: {error}") from None
    if not opener.eof:
        raise Malformed(f"packed: cut off, or more than {MAX_UNPACKED >> 20} MiB")
    return parsed(data.decode("utf-8", "replace"), Packed)
