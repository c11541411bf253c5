"""Which Python environment a process imports from, and where a package of it lies: {"pid": N, "package": "sglang"}.

Or {"python": PATH, "package": NAME} for an environment without a process. The process's own environment and folder are
used for the question, and what it has mapped into memory is the evidence that decides between several candidates.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

PROBE = r"""
import importlib.util as u, importlib.metadata as m, json, os, site, sys, sysconfig
name = sys.argv[1]
try: spec = u.find_spec(name)
except Exception: spec = None
origin = spec.origin if spec else None
if spec and not origin and spec.submodule_search_locations: origin = list(spec.submodule_search_locations)[0]
version = editable = None; scripts = []
try:
    d = m.distribution(name); version = d.version
    url = d.read_text("direct_url.json")
    if url: editable = json.loads(url) if json.loads(url).get("dir_info", {}).get("editable") else None
except m.PackageNotFoundError: pass
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix, "base_prefix": sys.base_prefix,
  "version_info": list(sys.version_info[:3]), "path": [os.path.abspath(p) for p in sys.path],
  "site_packages": [p for p in site.getsitepackages() if os.path.isdir(p)], "user_site": site.getusersitepackages(),
  "purelib": sysconfig.get_path("purelib"), "origin": origin, "version": version, "editable": editable}))
"""
SITE = re.compile(r"^(/.*?/(?:site|dist)-packages)/")


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def mapped_sites(pid: int) -> list[str]:
    """The package folders that the process has native libraries from, most used first."""
    counts: dict[str, int] = {}
    for line in read(f"/proc/{pid}/maps").splitlines():
        fields = line.split(None, 5)
        match = SITE.match(fields[5]) if len(fields) > 5 else None
        if match:
            counts[match.group(1)] = counts.get(match.group(1), 0) + 1
    return sorted(counts, key=lambda site: -counts[site])


def candidates(pid: int, env: dict[str, str], sites: list[str]) -> list[str]:
    """Interpreters that may be the one of the process, the likeliest first. /proc/PID/exe loses a venv's symlink."""
    argv = read(f"/proc/{pid}/cmdline").split("\0")
    found = []
    if argv and argv[0].startswith("/"):
        found.append(argv[0])
    elif argv and "/" in argv[0]:
        found.append(os.path.join(os.readlink(f"/proc/{pid}/cwd"), argv[0]))
    found.extend(os.path.join(site.split("/lib/python")[0], "bin", "python") for site in sites)
    if env.get("VIRTUAL_ENV"):
        found.append(os.path.join(env["VIRTUAL_ENV"], "bin", "python"))
    if argv and "/" not in argv[0] and argv[0]:
        found.append(shutil.which(argv[0], path=env.get("PATH")) or "")
    found.append(os.readlink(f"/proc/{pid}/exe"))
    unique: list[str] = []
    for path in found:
        if path and path not in unique and os.access(path, os.X_OK) and "python" in os.path.basename(path):
            unique.append(path)
    return unique


def probe(python: str, env: dict[str, str], cwd: str, package: str) -> dict[str, Any] | None:
    done = subprocess.run(
        [python, "-B", "-c", PROBE, package],
        env=env,
        cwd=cwd,
        capture_output=True,
        timeout=60,
    )
    lines = done.stdout.decode().strip().splitlines()
    return dict(json.loads(lines[-1])) if done.returncode == 0 and lines else None


def kind_of(facts: dict[str, Any]) -> str:
    """venv | uv | conda | system."""
    if os.path.isdir(os.path.join(facts["prefix"], "conda-meta")):
        return "conda"
    config = os.path.join(facts["prefix"], "pyvenv.cfg")
    if facts["prefix"] == facts["base_prefix"] or not os.path.exists(config):
        return "system"
    return "uv" if re.search(r"^uv\s*=", read(config), re.M) else "venv"


def package_kind(facts: dict[str, Any]) -> str:
    """site-packages | editable | source | user-site | other-environment | missing."""
    origin = facts["origin"]
    if not origin:
        return "missing"
    if facts["editable"]:
        return "editable"
    real = os.path.realpath(origin)
    if facts["user_site"] and real.startswith(os.path.realpath(facts["user_site"]) + "/"):
        return "user-site"
    if any(real.startswith(os.path.realpath(site) + "/") for site in facts["site_packages"]):
        return "site-packages"
    return "other-environment" if SITE.match(real) else "source"


def packages_digest(folders: list[str]) -> str:
    """SHA-256 over the RECORD of every installed distribution: another value means that something was (re)installed."""
    hasher = hashlib.sha256()
    for folder in folders:
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        for name in (one for one in names if one.endswith(".dist-info")):
            record = os.path.join(folder, name, "RECORD")
            hasher.update(name.encode() + (read(record).encode() if os.path.isfile(record) else b""))
    return hasher.hexdigest()


def main() -> None:
    wish = json.loads(sys.argv[1])
    package = wish["package"]
    if "pid" in wish:
        pid = int(wish["pid"])
        pairs = (item.partition("=") for item in read(f"/proc/{pid}/environ").split("\0") if "=" in item)
        env = {name: value for name, _, value in pairs}
        cwd = os.readlink(f"/proc/{pid}/cwd")
        sites = mapped_sites(pid)
        pythons = candidates(pid, env, sites)
    else:
        env, cwd, sites, pythons = dict(os.environ), "/", [], [wish["python"]]
    tried = []
    for python in pythons:
        facts = probe(python, env, cwd if os.path.isdir(cwd) else "/", package)
        if facts is None:
            continue
        agrees = not sites or any(os.path.realpath(site) in map(os.path.realpath, facts["path"]) for site in sites)
        tried.append({"python": python, "agrees": agrees, "origin": facts["origin"]})
        if agrees and facts["origin"]:
            facts.update(python=python, kind=kind_of(facts), package_kind=package_kind(facts), mapped=sites)
            facts["packages"] = packages_digest(facts["site_packages"])
            print(json.dumps({"found": facts, "tried": tried}))
            return
    print(json.dumps({"found": None, "tried": tried, "mapped": sites}))


if __name__ == "__main__":
    main()
