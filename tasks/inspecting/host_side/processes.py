"""Serving processes: what they are, where they listen, and which unit and environment they have."""

from __future__ import annotations

import json
import os
import re

from tasks.inspecting.host_side.base import MASK, SECRET_NAME, Facts, mask_argv, read
from tasks.inspecting.host_side.imports import python_facts
from tasks.inspecting.host_side.machine import ask_server

KEPT_ENV = re.compile(
    r"^(PYTHON|VIRTUAL_ENV|CONDA_PREFIX|PATH$|HOME$|LD_LIBRARY|CUDA|NVIDIA|HF_|SGLANG|SGL_|VLLM|NCCL|TORCH"
    r"|PYTORCH|TRITON|FLASHINFER|OMP_)"
)

MAX_WORD = 500
STANDALONE = "standalone"  # a script of somebody's own that serves a model over the OpenAI interface
SERVES = re.compile(r"(?<![a-z])(serv|api|openai|uvicorn|hypercorn|gunicorn|ddtree)", re.I)
TRAINS = re.compile(r"torchrun|torch[./]distributed|deepspeed|accelerate|--?(master|rdzv|main_process)[-_]", re.I)


def process_facts(pid: int) -> Facts | None:
    """Facts of one process; None when it is gone, a kernel thread, or hidden."""
    base = f"/proc/{pid}/"
    raw = read(base + "cmdline")
    if not raw:
        return None
    lines = (read(base + "status") or "").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    unit, cgroup = unit_of(read(base + "cgroup") or "")
    facts: Facts = {"pid": pid, "argv": raw.rstrip("\0").split("\0"), "unit": unit, "cgroup": cgroup}
    facts["ppid"] = int(status.get("PPid", "0"))
    facts["uid"] = int(status.get("Uid", "-1").split()[0])
    facts["rss_bytes"] = int(status.get("VmRSS", "0").split()[0]) * 1024
    facts["exe"], facts["cwd"] = link(base + "exe"), link(base + "cwd")
    return facts


def link(path: str) -> str | None:
    """Where a link leads; None when it can't be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def unit_of(cgroup: str) -> tuple[str | None, str]:
    """(innermost systemd unit, cgroup path) from /proc/PID/cgroup."""
    paths = [line.split(":", 2)[-1] for line in cgroup.splitlines()]
    for path in paths:
        for part in reversed(path.split("/")):
            if part.endswith((".service", ".scope")):
                return part, path
    return None, paths[-1] if paths else ""


def role_of(argv: list[str]) -> tuple[str, str]:
    """(engine, role) of a command line; ('', '') when it serves no model."""
    title = argv[0]
    for mark, engine in (("sglang::", "sglang"), ("VLLM::", "vllm")):
        if title.startswith(mark):
            return engine, title.split("::", 1)[1].split(" ")[0]
    names = [os.path.basename(item) for item in argv[:6]]
    modules = [argv[i + 1] for i, item in enumerate(argv[:-1]) if item == "-m" and i < 6]
    first = names[0]
    script = names[1] if first.startswith("python") and len(names) > 1 else first
    before_serve = os.path.basename(argv[argv.index("serve") - 1]) if "serve" in argv[1:4] else ""
    if "sglang.launch_server" in modules or script == "launch_server.py" or before_serve == "sglang":
        return "sglang", "server"
    if any(m.startswith("vllm.entrypoints") for m in modules) or before_serve == "vllm":
        return "vllm", "server"
    if script in ("trtllm-serve", "tritonserver") or any(m.startswith("tensorrt_llm") for m in modules):
        return "tensorrt_llm", "server"
    if first in ("llama-server", "llama-cli") or any(m.startswith("llama_cpp") for m in modules):
        return "llama_cpp", "server"
    spawned = "--multiprocessing-fork" in argv or any("multiprocessing.spawn" in item for item in argv[:6])
    return ("", "worker") if spawned else ("", "")


def listening() -> dict[str, int]:
    """{socket inode: port} of every listening TCP socket."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in (read("/proc/net/" + name, 8 << 20) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                found[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    return found


def ports_of(pid: int, sockets: dict[str, int]) -> list[int] | None:
    """Ports on which a process listens; None when its descriptors are hidden from this user."""
    folder = f"/proc/{pid}/fd"
    ports = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        target = link(os.path.join(folder, name)) or ""
        if target.startswith("socket:[") and target[8:-1] in sockets:
            ports.add(sockets[target[8:-1]])
    return sorted(ports)


def ancestors() -> set[int]:
    """This process and its parents: their command lines carry our own words."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        match = re.search(r"^PPid:\s*(\d+)", read(f"/proc/{pid}/status") or "", re.M)
        pid = int(match.group(1)) if match else 0
    return found


def environment(pid: int) -> dict[str, str] | None:
    """The variables that matter, secrets masked; None when they are hidden from this user."""
    raw = read(f"/proc/{pid}/environ", 4 << 20)
    if raw is None:
        return None
    pairs = [item.split("=", 1) for item in raw.split("\0") if "=" in item]
    return {name: MASK if SECRET_NAME.search(name) else value for name, value in pairs if KEPT_ENV.match(name)}


def mapped_folders(pid: int) -> tuple[list[str], list[str]]:
    """(folders of engine packages, prefixes of environments) from which a process mapped shared objects."""
    packages, prefixes = set(), []
    for line in (read(f"/proc/{pid}/maps", 16 << 20) or "").splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        for match in re.finditer(r"/(?:sglang|vllm)(?=/)", path):
            packages.add(path[: match.end()])
        prefix = re.search(r"(/\S*?)/lib(?:64)?/python3\.\d+/site-packages/", line)
        if prefix and prefix.group(1) not in prefixes:
            prefixes.append(prefix.group(1))
    return sorted(p for p in packages if os.path.isfile(os.path.join(p, "__init__.py"))), prefixes


def server_facts(facts: Facts, table: dict[int, Facts], sockets: dict[str, int]) -> Facts:
    """Everything about one serving process and its children."""
    pid = facts["pid"]
    env = environment(pid)
    children = [p for p in table if table[p]["ppid"] == pid]
    own, prefixes = mapped_folders(pid)
    maps = sorted({*own, *(root for child in children for root in mapped_folders(child)[0])})
    found = dict(facts, env=env, ports=ports_of(pid, sockets), maps=maps, children=children)
    found["limits"] = read(f"/proc/{pid}/limits")
    if facts["engine"] in ("sglang", "vllm"):
        found["python"] = python_facts(facts["argv"], facts["exe"], facts["cwd"], env or {}, prefixes)
    found["argv"] = mask_argv(facts["argv"])
    return found


def servers() -> Facts:
    """{servers, others, hidden, listening}: others are workers, and with name_holders whatever else holds a GPU."""
    own, sockets = ancestors(), listening()
    table: dict[int, Facts] = {}
    for name in os.listdir("/proc"):
        facts = process_facts(int(name)) if name.isdigit() and int(name) not in own else None
        if facts:
            facts["engine"], facts["role"] = role_of(facts["argv"])
            table[facts["pid"]] = facts
    for facts in table.values():
        if not facts["engine"] and is_standalone(facts, sockets):
            facts["engine"], facts["role"] = STANDALONE, "server"
    serving = {pid for pid, facts in table.items() if facts["engine"] and facts["role"] == "server"}
    # A launcher's forks carry the same command line: only the outermost process counts.
    outer = [table[pid] for pid in sorted(serving) if table[pid]["ppid"] not in serving]
    found = [server_facts(facts, table, sockets) for facts in outer]
    shown = {item["pid"] for item in found}
    others = [
        other(facts) for pid, facts in sorted(table.items()) if pid not in shown and (facts["engine"] or facts["role"])
    ]
    hidden = sum(item["env"] is None for item in found)
    return {"servers": found, "others": others, "hidden": hidden, "listening": sorted(set(sockets.values()))}


def is_standalone(facts: Facts, sockets: dict[str, int]) -> bool:
    """Whether a Python process that imports torch says on its port which models it serves.

    Only ports that its command line names, or of what calls itself a server: a training job's port must not be spoken to.
    """
    words = facts["argv"]
    if "python" not in os.path.basename(facts["exe"] or "") or TRAINS.search(" ".join(words)):
        return False
    named = {int(number) for word in words for number in re.findall(r"(?<![\w.])\d{2,5}(?![\w.])", word)}
    ports = [port for port in ports_of(facts["pid"], sockets) or [] if port in named or SERVES.search(" ".join(words))]
    if not ports or "/torch/lib/" not in (read(f"/proc/{facts['pid']}/maps", 16 << 20) or ""):
        return False
    return any(lists_models(port) for port in ports[:2])


def lists_models(port: int) -> bool:
    """Whether GET /v1/models gives a list, as every OpenAI-compatible server's does."""
    status, body = ask_server(port, "/v1/models", 1.0)
    try:
        found = json.loads(body) if status == 200 else None
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("data"), list)


def other(facts: Facts) -> Facts:
    """What is told of a process that is no server."""
    kept = ("pid", "ppid", "unit", "uid", "engine", "role")
    argv = [word[:MAX_WORD] for word in mask_argv(facts["argv"])[:12]]
    return dict({key: facts[key] for key in kept}, argv=argv)


def name_holders(found: Facts, gpu_pids: set[int]) -> None:
    """Add those processes that hold a GPU and are not told yet."""
    told = {item["pid"] for item in found["servers"] + found["others"]}
    for pid in sorted(gpu_pids - told):
        facts = process_facts(pid)
        if facts:
            facts["engine"], facts["role"] = role_of(facts["argv"])
            found["others"].append(other(facts))
