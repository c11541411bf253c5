"""Which package a python process imports, worked out from its flags, environment, folder and path files."""

from __future__ import annotations

import ast
import os
import re
from typing import Tuple

from tasks.inspecting.host_side.base import Facts, read

PLUGIN_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms", "vllm.general_plugins")
SITE_PATTERNS = (
    "lib/python3.{}/site-packages",
    "lib64/python3.{}/site-packages",
    "local/lib/python3.{}/dist-packages",
    "lib/python3.{}/dist-packages",
)
Place = Tuple[str, str]  # (kind, folder) or (package, folder)


def interpreter(argv: list[str], exe: str | None, env: dict[str, str], mapped: list[str]) -> tuple[str, str, bool]:
    """(path of the interpreter as started, its prefix, whether that is a virtual environment).

    A process that changed its title has lost its command line: the environment from which it mapped modules stands in.
    """
    titled = not os.path.basename(argv[0]).startswith("python")
    environments = [prefix for prefix in mapped if read(os.path.join(prefix, "pyvenv.cfg")) is not None]
    if titled and environments:
        return os.path.join(environments[0], "bin", "python"), environments[0], True
    started = (exe or "") if titled else argv[0]
    if started and not os.path.isabs(started):
        folders = (env.get("PATH") or os.defpath).split(os.pathsep)
        candidates = [os.path.join(folder, started) for folder in folders]
        started = next((path for path in candidates if os.access(path, os.X_OK)), exe or started)
    prefix = os.path.dirname(os.path.dirname(started))
    if read(os.path.join(prefix, "pyvenv.cfg")) is not None:
        return started, prefix, True
    return started, os.path.dirname(os.path.dirname(os.path.realpath(exe or started))), False


def site_folders(prefix: str) -> list[str]:
    """Site folders below a prefix that exist, each once."""
    folders = [os.path.join(prefix, p.format(minor)) for minor in range(7, 20) for p in SITE_PATTERNS]
    folders.append(os.path.join(prefix, "lib/python3/dist-packages"))
    unique: dict[str, str] = {}
    for folder in folders:
        if os.path.isdir(folder):
            unique.setdefault(os.path.realpath(folder), folder)
    return list(unique.values())


def path_files(site: str) -> tuple[list[str], dict[str, str]]:
    """(folders that the .pth files of a site folder add, {package: folder} of its editable finders)."""
    folders: list[str] = []
    mapping: dict[str, str] = {}
    try:
        names = sorted(os.listdir(site))
    except OSError:
        return folders, mapping
    for name in names:
        text = ""
        if name.endswith(".pth") or (name.startswith("__editable__") and name.endswith("_finder.py")):
            text = read(os.path.join(site, name)) or ""
        if name.endswith(".pth"):
            lines = [line.strip() for line in text.splitlines()]
            kept = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
            folders += [os.path.normpath(os.path.join(site, line)) for line in kept]
        else:
            match = re.search(r"^MAPPING[^=]*=\s*(\{.*?\})", text, re.M | re.S)
            try:
                found = ast.literal_eval(match.group(1)) if match else {}
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
            pairs = found.items() if isinstance(found, dict) else ()
            mapping.update((k, v) for k, v in pairs if isinstance(k, str) and isinstance(v, str))
    return folders, mapping


def first_places(argv: list[str], cwd: str, env: dict[str, str], flags: str) -> list[Place]:
    """What comes before the site folders: the working or script folder, then PYTHONPATH."""
    places: list[Place] = []
    script = next((item for item in argv[1:] if not item.startswith("-")), "")
    if not ("I" in flags or "P" in flags or env.get("PYTHONSAFEPATH")):
        if "-m" in argv[1:6] or "-c" in argv[1:4]:
            places.append(("cwd", cwd))
        elif script.endswith(".py") or "/" in script:
            places.append(("script", os.path.dirname(os.path.realpath(os.path.join(cwd or "/", script)))))
    if "I" not in flags and "E" not in flags:
        named = [item for item in (env.get("PYTHONPATH") or "").split(":") if item]
        places += [("pythonpath", os.path.join(cwd or "/", item)) for item in named]
    return places


def search_path(
    argv: list[str], cwd: str, env: dict[str, str], prefix: str, venv: bool
) -> tuple[list[Place], list[Place]]:
    """([(kind, folder)] in the order in which the interpreter looks, [(package, folder)] of editable finders)."""
    flags = "".join(item[1:] for item in argv[1:4] if re.match(r"^-[BEIOPSsuvWdiq]+$", item))
    places = first_places(argv, cwd, env, flags)
    config = (read(os.path.join(prefix, "pyvenv.cfg")) or "") if venv else ""
    system = not venv or bool(re.search(r"(?im)^include-system-site-packages\s*=\s*true", config))
    sites = [("site-packages", folder) for folder in site_folders(prefix)] if venv else []
    if system and "I" not in flags and "s" not in flags and not env.get("PYTHONNOUSERSITE"):
        base = env.get("PYTHONUSERBASE") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local")
        sites += [("user-site", folder) for folder in site_folders(base)]
    if system:
        home = re.search(r"(?im)^home\s*=\s*(\S+)", config)
        outer = os.path.dirname(home.group(1)) if home else prefix
        for folder in [outer] + (["/usr/local"] if outer == "/usr" else []):
            sites += [("site-packages", path) for path in site_folders(folder)]
    finders: list[Place] = []
    for kind, folder in sites:
        places.append((kind, folder))
        added, mapping = path_files(folder)
        places += [("editable", path) for path in added]
        finders += sorted(mapping.items())
    return places, finders


def resolve(package: str, places: list[Place], finders: list[Place]) -> list[Place]:
    """[(kind, folder of the package)]: the first is imported, the rest are hidden by it."""
    found = [(kind, os.path.join(folder, package)) for kind, folder in places if folder]
    found = [(kind, path) for kind, path in found if os.path.isfile(os.path.join(path, "__init__.py"))]
    found += [("editable", path) for name, path in finders if name == package and os.path.isdir(path)]
    unique: dict[str, Place] = {}
    for kind, path in found:
        unique.setdefault(os.path.realpath(path), (kind, path))
    return list(unique.values())


def version_of(package_path: str) -> str | None:
    """The version that the package's own files state, else the one of its metadata beside it."""
    for name in ("_version.py", "version.py", "__init__.py"):
        text = read(os.path.join(package_path, name)) or ""
        match = re.search(r"^__version__.*?=\s*['\"]([\w.+!-]+)['\"]", text, re.M)
        if match and not match.group(1).startswith("0.0.0"):
            return match.group(1)
    parent, package = os.path.split(package_path)
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return None
    matches = (re.match(re.escape(package) + r"-(.+)\.(dist|egg)-info$", name) for name in names)
    return next((match.group(1) for match in matches if match), None)


def distributions(sites: list[str]) -> tuple[dict[str, str], list[Facts]]:
    """({distribution: version}, plug-in entry points) of some site folders; the first folder wins."""
    versions: dict[str, str] = {}
    plugins: list[Facts] = []
    for site in sites:
        try:
            names = os.listdir(site)
        except OSError:
            continue
        for name in names:
            match = re.match(r"(.+?)-([^-]+)\.(?:dist|egg)-info$", name)
            if match:
                versions.setdefault(match.group(1).lower().replace("_", "-"), match.group(2))
                text = read(os.path.join(site, name, "entry_points.txt")) or ""
                base = {"dist": match.group(1), "version": match.group(2), "site": site}
                plugins += [dict(entry, **base) for entry in entry_points(text)]
    return versions, plugins


def entry_points(text: str) -> list[Facts]:
    """Entries of the plug-in groups in an entry_points.txt."""
    found, group = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            group = line.strip("[] ")
        elif "=" in line and group in PLUGIN_GROUPS:
            name, _, value = line.partition("=")
            found.append({"group": group, "name": name.strip(), "value": value.strip()})
    return found


def python_facts(argv: list[str], exe: str | None, cwd: str | None, env: dict[str, str], mapped: list[str]) -> Facts:
    """What a serving python process imports, and what is installed in its environment."""
    started, prefix, venv = interpreter(argv, exe, env, mapped)
    places, finders = search_path(argv, cwd or "", env, prefix, venv)
    versions, plugins = distributions([folder for _, folder in places if folder])
    packages = {}
    for package in ("sglang", "vllm"):
        found = resolve(package, places, finders)
        if found:
            kind, path = found[0]
            hidden = [other for _, other in found[1:]]
            packages[package] = {"path": path, "kind": kind, "version": version_of(path), "shadowed": hidden}
    facts = {"interpreter": started, "prefix": prefix, "venv": venv, "packages": packages}
    return dict(facts, distributions=versions, plugins=plugins)
