"""Called as `python3 -IBS - MODE OPTIONS`; OPTIONS is a JSON object, the answer one JSON object on stdout.

probe  {ports[], unit, paths[], roots[], extra_roots[], seconds, skip[], stop_if_hidden}  facts of processes, copies, GPUs
       and system; skip leaves out `gpu` (nvidia-smi) and `copies` (the walk over the disk), the two parts that can take
       seconds; stop_if_hidden ends after the processes when this login sees too little of a server
files  {asks: {name: {root, files[], globs[], listing, model, repository, hubs[]}}}  for each name texts of files (zlib,
       base64), listing, tensors
stamps {asks} as above  for each name a hash of names, sizes and times of change of what `files` would read
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import os
import re
import sys
import time
import zlib
from typing import Any

from tasks.inspecting.host_side.base import Facts, collect, mask_text, read, start_command
from tasks.inspecting.host_side.machine import GPU_COMMANDS, ROOTS, UNIT_KEYS, copies, server_info, system_facts
from tasks.inspecting.host_side.models import snapshot, tensor_table, tokenizer_digest, weights_digest
from tasks.inspecting.host_side.processes import name_holders, servers


def probe(options: Facts) -> Facts:
    started = time.monotonic()
    seconds = float(options.get("seconds", 4.0))
    skip = options.get("skip", [])
    processes = servers()
    if options.get("stop_if_hidden") and hidden(processes, options.get("ports", [])):
        return {"processes": processes, "stopped": True}
    running = {} if "gpu" in skip else {name: start_command(argv, seconds) for name, argv in GPU_COMMANDS.items()}
    running["systemd"] = start_command(["systemctl", "--version"], 2.0)
    running["virt"] = start_command(["systemd-detect-virt"], 2.0)
    if options.get("unit"):
        unit = options["unit"]
        running["unit"] = start_command(["systemctl", "show", unit, "-p", UNIT_KEYS], 2.0)
        running["unit_cat"] = start_command(["systemctl", "cat", unit, "--no-pager"], 2.0)
    info = resolved_arguments(candidate_ports(options, processes))
    own = [*options.get("extra_roots", []), *(item["cwd"] for item in processes["servers"])]
    groups = [] if "copies" in skip else [own, list(options.get("roots") or ROOTS)]
    found, cut = search(groups, started + seconds)
    facts: Facts = {"processes": processes, "system": system_facts(options.get("paths", [])), "server_info": info}
    texts = {name: collect(item) for name, item in running.items()}
    for name in ("unit", "unit_cat"):
        if name in texts:
            texts[name]["out"] = mask_text(texts[name]["out"])
    holders = texts["apps"]["out"] if "apps" in texts else ""
    name_holders(processes, {int(pid) for pid in re.findall(r"^[^,\n]+,\s*(\d+),", holders, re.M)})
    facts.update(commands=texts, copies=found, copies_truncated=cut, seconds=round(time.monotonic() - started, 3))
    return facts


def hidden(processes: Facts, ports: list[int]) -> bool:
    """Whether a server's environment, or who listens on one of the ports, can't be seen by this login."""
    owned = {port for item in processes["servers"] for port in item["ports"] or []}
    return bool(processes["hidden"]) or any(port in processes["listening"] and port not in owned for port in ports)


def resolved_arguments(ports: list[int]) -> Facts | None:
    """{port, data} of the first of these ports that tells its arguments."""
    for port in ports:
        data = server_info(port)
        if data is not None:
            return {"port": port, "data": data}
    return None


def search(groups: list[list[str | None]], deadline: float) -> tuple[list[Facts], bool]:
    """Copies below each group of roots, the likely ones first, and whether the time ran out."""
    found: dict[str, Facts] = {}
    for group in groups:
        roots = [root for root in dict.fromkeys(group) if root and root != "/" and os.path.isdir(root)]
        more, cut = copies(roots, deadline)
        found.update((copy["path"], copy) for copy in more)
        if cut:
            return list(found.values()), True
    return sorted(found.values(), key=lambda copy: str(copy["path"])), False


def candidate_ports(options: Facts, processes: Facts) -> list[int]:
    """The port of the inventory, then those of SGLang's processes; only what listens."""
    ports = list(options.get("ports", []))
    for item in processes["servers"]:
        if item["engine"] == "sglang":
            ports += item["ports"] or []
    return [port for port in dict.fromkeys(ports) if port in processes["listening"]]


def files(options: Facts) -> Facts:
    return {"answers": {name: folder(ask) for name, ask in options["asks"].items()}}


def stamps(options: Facts) -> Facts:
    return {"stamps": {name: stamp(ask) for name, ask in options["asks"].items()}}


def stamp(options: Facts) -> str:
    """Another one as soon as a file that one ask wants was written, has come or has gone."""
    root, names = wanted(options)
    if options.get("listing") and os.path.isdir(root) and os.access(root, os.R_OK | os.X_OK):
        names += sorted(os.listdir(root))
    return hashlib.sha256("\n".join([root, *(f"{name} {written(os.path.join(root, name))}" for name in names)]).encode(
        "utf-8", "surrogateescape")).hexdigest()  # fmt: skip


def written(path: str) -> str:
    try:
        facts = os.stat(path)
    except OSError:
        return "-"
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ino}"


def wanted(options: Facts) -> tuple[str, list[str]]:
    """The root of one ask, and the files below it that it names."""
    root = options["root"]
    if not os.path.isdir(root) and options.get("hubs"):
        root = snapshot(options.get("repository", ""), options["hubs"]) or root
    names = [*options.get("files", []), *(name for glob in options.get("globs", []) for name in matches(root, glob))]
    return root, list(dict.fromkeys(names))


def folder(options: Facts) -> Facts:
    """What one ask wants of its root; not there is an answer."""
    root, names = wanted(options)
    limit = int(options.get("max_bytes", 2 << 20))
    found = {name: read(os.path.join(root, name), limit) for name in names}
    texts = {name: text for name, text in found.items() if text is not None}
    answer: Facts = {"root": root, "exists": os.path.isdir(root), "readable": os.access(root, os.R_OK | os.X_OK)}
    packed: Facts = {"texts": texts, "tensors": {}, "tokenizer": None, "weights": None}
    if options.get("model") and answer["readable"]:
        packed.update(tensors=tensor_table(root), tokenizer=tokenizer_digest(root), weights=weights_digest(root))
    answer["packed"] = base64.b64encode(zlib.compress(json.dumps(packed).encode(), 6)).decode()
    answer["missing"] = [name for name in names if name not in texts]
    answer["listing"] = sizes(root) if options.get("listing") and answer["readable"] else []
    return answer


def matches(root: str, glob: str) -> list[str]:
    """Files below the root that match a pattern; only the folder before its first star is walked."""
    start = os.path.join(root, glob.split("*", 1)[0].rpartition("/")[0])
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(start) for name in names]
    return sorted(path for path in (os.path.relpath(p, root) for p in paths) if fnmatch.fnmatch(path, glob))


def sizes(root: str) -> list[list[Any]]:
    """[name, bytes] of every file directly in the root; links count with the size of what they lead to."""
    paths = [(name, os.path.join(root, name)) for name in sorted(os.listdir(root))]
    return [[name, os.path.getsize(path)] for name, path in paths if os.path.isfile(path)]


def main() -> None:
    mode, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps({"probe": probe, "files": files, "stamps": stamps}[mode](options)))


if __name__ == "__main__":
    main()
