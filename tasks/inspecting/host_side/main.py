"""Called as `python3 -IBS - MODE OPTIONS`; OPTIONS is a JSON object, the answer one JSON object on stdout.

probe  {ports[], unit, paths[], roots[], extra_roots[], seconds}  facts of processes, copies, GPUs and system
files  {root, files[], globs[], listing}                          texts of files (zlib, base64) and a listing
"""

from __future__ import annotations

import base64
import fnmatch
import json
import os
import re
import sys
import time
import zlib

from tasks.inspecting.host_side.base import Facts, collect, mask_text, read, start_command
from tasks.inspecting.host_side.machine import GPU_COMMANDS, ROOTS, UNIT_KEYS, copies, server_info, system_facts
from tasks.inspecting.host_side.processes import servers


def probe(options: Facts) -> Facts:
    started = time.monotonic()
    seconds = float(options.get("seconds", 4.0))
    running = {name: start_command(argv, seconds) for name, argv in GPU_COMMANDS.items()}
    running["systemd"] = start_command(["systemctl", "--version"], 2.0)
    running["virt"] = start_command(["systemd-detect-virt"], 2.0)
    if options.get("unit"):
        unit = options["unit"]
        running["unit"] = start_command(["systemctl", "show", unit, "-p", UNIT_KEYS], 2.0)
        running["unit_cat"] = start_command(["systemctl", "cat", unit, "--no-pager"], 2.0)
    system = system_facts(options.get("paths", []))
    texts = {name: collect(item) for name, item in running.items()}
    for name in ("unit", "unit_cat"):
        if name in texts:
            texts[name]["out"] = mask_text(texts[name]["out"])
    gpu_pids = {int(pid) for pid in re.findall(r"^[^,\n]+,\s*(\d+),", texts["apps"]["out"], re.M)}
    processes = servers(gpu_pids)
    info = None
    for port in candidate_ports(options, processes):
        data = server_info(port)
        if data is not None:
            info = {"port": port, "data": data}
            break
    roots = list(options.get("roots") or ROOTS) + list(options.get("extra_roots", []))
    folders = [item["cwd"] for item in processes["servers"] if item["cwd"] not in (None, "/")]
    existing = [root for root in dict.fromkeys(roots + folders) if os.path.isdir(root)]
    found, cut = copies(existing, started + seconds)
    facts: Facts = {"processes": processes, "commands": texts, "system": system, "server_info": info}
    facts.update(copies=found, copies_truncated=cut, seconds=round(time.monotonic() - started, 3))
    return facts


def candidate_ports(options: Facts, processes: Facts) -> list[int]:
    """The port of the inventory, then those of SGLang's processes; only what listens."""
    ports = list(options.get("ports", []))
    for item in processes["servers"]:
        if item["engine"] == "sglang":
            ports += item["ports"] or []
    return [port for port in dict.fromkeys(ports) if port in processes["listening"]]


def files(options: Facts) -> Facts:
    root, globs = options["root"], options.get("globs", [])
    names, listing = list(options.get("files", [])), []
    for folder, _, contents in os.walk(root):
        inner = os.path.relpath(folder, root)
        paths = [name if inner == "." else os.path.join(inner, name) for name in sorted(contents)]
        names += [path for path in paths if any(fnmatch.fnmatch(path, pattern) for pattern in globs)]
        if inner == "." and options.get("listing"):
            sizes = [(name, os.path.join(folder, name)) for name in sorted(contents)]
            listing = [[name, os.path.getsize(path)] for name, path in sizes if os.path.exists(path)]
        if not globs:
            break
    texts: dict[str, str] = {}
    for name in dict.fromkeys(names):
        text = read(os.path.join(root, name), int(options.get("max_bytes", 2 << 20)))
        if text is not None:
            texts[name] = text
    answer: Facts = {"root": root, "exists": os.path.isdir(root), "readable": os.access(root, os.R_OK | os.X_OK)}
    answer["packed"] = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 6)).decode()
    answer.update(missing=[name for name in dict.fromkeys(names) if name not in texts], listing=listing)
    return answer


def main() -> None:
    mode, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(probe(options) if mode == "probe" else files(options)))


if __name__ == "__main__":
    main()
