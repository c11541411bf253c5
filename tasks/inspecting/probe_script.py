"""Sent over stdin to the host's python3 (3.8 or newer, standard library only): looks, changes nothing, prints one JSON.

Called as `python3 -IBS - MODE OPTIONS` where OPTIONS is a JSON object and MODE is
  probe  {port, unit, roots[], paths[], seconds}  -> facts of processes, environments, copies, GPUs and system
  files  {root, files[], globs[], listing}         -> texts of small files below a root (zlib + base64) and its listing
Secrets are masked here, so that none leaves the host.
"""

import ast
import base64
import contextlib
import fnmatch
import json
import os
import platform
import re
import subprocess
import sys
import time
import zlib

ENGINES = ("sglang", "vllm", "tensorrt_llm", "llama_cpp")
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.I)
SECRET_FLAG = re.compile(r"^--?[\w-]*(api-?key|token|secret|password|credential)s?$", re.I)
NOT_SECRET = re.compile(r"tokens?-|tokenizer|-tokens$|max-.*token", re.I)
KEPT_ENV = re.compile(
    r"^(PYTHON|VIRTUAL_ENV|CONDA_PREFIX|PATH$|HOME$|LD_LIBRARY|CUDA|NVIDIA|HF_|SGLANG|SGL_|VLLM|NCCL|TORCH|PYTORCH|TRITON|FLASHINFER|OMP_)"
)
PLUGIN_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms", "vllm.general_plugins")
PRUNED = {"proc", "sys", "dev", "node_modules", "__pycache__", ".git", "snap", "snapshots", "blobs", "hub", ".cargo"}
MASK = "***"


def read(path, limit=1 << 20):
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def command(argv, seconds=4.0):
    """Start a command; collect() gives its texts later, so that slow tools run side by side."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", NO_COLOR="1"),
        )
    except OSError as error:
        return {"argv": argv, "missing": str(error)}
    return {"argv": argv, "process": process, "until": time.monotonic() + seconds}


def collect(started):
    if "process" not in started:
        return {"exit": 127, "out": "", "err": started["missing"]}
    process = started["process"]
    try:
        out, err = process.communicate(timeout=max(0.05, started["until"] - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return {"exit": 124, "out": out.decode("utf-8", "replace"), "err": "no answer in time"}
    return {"exit": process.returncode, "out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}


def is_secret_flag(text):
    return bool(SECRET_FLAG.match(text)) and not NOT_SECRET.search(text)


def mask_argv(argv):
    masked, hide = [], False
    for item in argv:
        flag, equals, _ = item.partition("=")
        if hide and not item.startswith("--"):
            masked.append(MASK)
            hide = False
            continue
        hide = is_secret_flag(item)
        masked.append(flag + "=" + MASK if equals and is_secret_flag(flag) else item)
    return masked


def mask_text(text):
    """Mask NAME=value pairs and --api-key values in unit files and systemctl output."""
    text = re.sub(
        r"(?im)\b(\w*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL)\w*)=(\"[^\"]*\"|'[^']*'|[^\s;}\"']+)", r"\1=" + MASK, text
    )
    return re.sub(
        r"(?i)(--?[\w-]*(?:api-?key|hf-token|secret|password))([= ]+)(\"[^\"]*\"|'[^']*'|\S+)", r"\1\2" + MASK, text
    )


# ---------------------------------------------------------------- processes


def process_facts(pid):
    base = "/proc/%d/" % pid
    raw = read(base + "cmdline")
    if not raw:
        return None
    argv = raw.rstrip("\0").split("\0")
    status = dict(line.split(":", 1) for line in (read(base + "status") or "").splitlines() if ":" in line)
    facts = {
        "pid": pid,
        "argv": argv,
        "ppid": int(status.get("PPid", "0")),
        "uid": int(status.get("Uid", "-1").split()[0]),
    }
    facts["rss_bytes"] = int(status.get("VmRSS", "0").split()[0]) * 1024
    facts["unit"], facts["cgroup"] = unit_of(read(base + "cgroup") or "")
    for name in ("exe", "cwd"):
        try:
            facts[name] = os.readlink(base + name)
        except OSError:
            facts[name] = None
    return facts


def unit_of(cgroup):
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        for part in reversed(path.split("/")):
            if part.endswith((".service", ".scope")):
                return part, path
    return None, cgroup.splitlines()[-1].split(":", 2)[-1] if cgroup else ""


def role_of(argv):
    """(engine, role) of a command line; ('', '') when it serves no model."""
    title = argv[0]
    if title.startswith("sglang::"):
        return "sglang", title.split("::", 1)[1].split(" ")[0]
    if title.startswith("VLLM::"):
        return "vllm", title.split("::", 1)[1]
    names = [os.path.basename(item) for item in argv[:6]]
    modules = [argv[i + 1] for i, item in enumerate(argv[:-1]) if item == "-m" and i < 6]
    first = names[0] if names else ""
    script = names[1] if first.startswith("python") and len(names) > 1 else first
    after = argv[argv.index("serve") - 1] if "serve" in argv[1:4] else ""
    if "sglang.launch_server" in modules or script == "launch_server.py" or os.path.basename(after) == "sglang":
        return "sglang", "server"
    if any(m.startswith("vllm.entrypoints") for m in modules) or os.path.basename(after) == "vllm":
        return "vllm", "server"
    if script in ("trtllm-serve", "tritonserver") or any(m.startswith("tensorrt_llm") for m in modules):
        return "tensorrt_llm", "server"
    if first in ("llama-server", "llama-cli") or any(m.startswith("llama_cpp") for m in modules):
        return "llama_cpp", "server"
    if "--multiprocessing-fork" in argv or any("multiprocessing.spawn" in item for item in argv[:6]):
        return "", "worker"
    return "", ""


def listening():
    """Port and socket inode of every listening TCP socket."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in (read("/proc/net/" + name, 8 << 20) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                found[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    return found


def ports_of(pid, sockets):
    ports = set()
    try:
        for name in os.listdir("/proc/%d/fd" % pid):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                ports.add(sockets.get(target[8:-1]))
    except OSError:
        return None
    return sorted(port for port in ports if port)


def ancestors():
    found, pid = set(), os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        match = re.search(r"^PPid:\s*(\d+)", read("/proc/%d/status" % pid) or "", re.M)
        pid = int(match.group(1)) if match else 0
    return found


def environment(pid):
    raw = read("/proc/%d/environ" % pid, 4 << 20)
    if raw is None:
        return None
    pairs = [item.split("=", 1) for item in raw.split("\0") if "=" in item]
    return {name: MASK if SECRET_NAME.search(name) else value for name, value in pairs if KEPT_ENV.match(name)}


def mapped_packages(pid):
    """Folders of engine packages from which this process mapped shared objects."""
    roots = set()
    for line in (read("/proc/%d/maps" % pid, 16 << 20) or "").splitlines():
        match = re.search(r"(/\S*?/(?:sglang|vllm))/", line)
        if match:
            roots.add(match.group(1))
    return sorted(roots)


# ---------------------------------------------------------------- what a python process imports


def interpreter(argv, exe, env):
    """(path of the interpreter as started, its prefix, whether that is a virtual environment)."""
    started = argv[0] if os.path.basename(argv[0]).startswith("python") else exe or ""
    if started and not os.path.isabs(started):
        for folder in (env.get("PATH") or os.defpath).split(os.pathsep):
            if os.access(os.path.join(folder, started), os.X_OK):
                started = os.path.join(folder, started)
                break
        else:
            started = exe or started
    prefix = os.path.dirname(os.path.dirname(started))
    if read(os.path.join(prefix, "pyvenv.cfg")) is not None:
        return started, prefix, True
    real = os.path.realpath(exe or started)
    return started, os.path.dirname(os.path.dirname(real)), False


def site_folders(prefix):
    patterns = (
        "lib/python3.%d/site-packages",
        "lib64/python3.%d/site-packages",
        "local/lib/python3.%d/dist-packages",
        "lib/python3.%d/dist-packages",
    )
    folders = [os.path.join(prefix, p % minor) for minor in range(7, 20) for p in patterns]
    folders.append(os.path.join(prefix, "lib/python3/dist-packages"))
    unique = {}
    for folder in folders:
        if os.path.isdir(folder):
            unique.setdefault(os.path.realpath(folder), folder)
    return list(unique.values())


def pth_entries(site):
    """(folders added by path files, {package: folder} of editable finders) of one site folder."""
    folders, mapping = [], {}
    try:
        names = sorted(os.listdir(site))
    except OSError:
        return folders, mapping
    for name in names:
        if name.endswith(".pth"):
            for line in (read(os.path.join(site, name)) or "").splitlines():
                line = line.strip()
                if line and not line.startswith(("#", "import ", "import\t")):
                    folders.append(os.path.normpath(os.path.join(site, line)))
        elif name.startswith("__editable__") and name.endswith("_finder.py"):
            match = re.search(r"^MAPPING[^=]*=\s*(\{.*?\})", read(os.path.join(site, name)) or "", re.M | re.S)
            if match:
                with contextlib.suppress(ValueError, SyntaxError):
                    mapping.update(ast.literal_eval(match.group(1)))
    return folders, mapping


def search_path(argv, cwd, env, prefix, venv):
    """[(kind, folder)] in the order in which the process's interpreter looks, then [(package, folder)] of finders."""
    flags = "".join(item[1:] for item in argv[1:4] if re.match(r"^-[BEIOPSsuvWdiq]+$", item))
    isolated = "I" in flags
    order = []
    script = next((item for item in argv[1:] if not item.startswith("-")), "")
    if not (isolated or "P" in flags or env.get("PYTHONSAFEPATH")):
        if "-m" in argv[1:6] or "-c" in argv[1:4]:
            order.append(("cwd", cwd or ""))
        elif script.endswith(".py") or "/" in script:
            order.append(("script", os.path.dirname(os.path.realpath(os.path.join(cwd or "/", script)))))
    if not isolated and "E" not in flags:
        order += [
            ("pythonpath", os.path.join(cwd or "/", item)) for item in (env.get("PYTHONPATH") or "").split(":") if item
        ]
    config = read(os.path.join(prefix, "pyvenv.cfg")) or "" if venv else ""
    system = not venv or re.search(r"(?im)^include-system-site-packages\s*=\s*true", config)
    sites = [("site-packages", folder) for folder in site_folders(prefix)] if venv else []
    user_ok = system and not isolated and "s" not in flags and not env.get("PYTHONNOUSERSITE")
    if user_ok:
        base = env.get("PYTHONUSERBASE") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local")
        sites += [("user-site", folder) for folder in site_folders(base)]
    if system:
        home = re.search(r"(?im)^home\s*=\s*(\S+)", config)
        outer = os.path.dirname(home.group(1)) if home else prefix
        for folder in [outer] + (["/usr/local"] if outer == "/usr" else []):
            sites += [("site-packages", path) for path in site_folders(folder)]
    finders = []
    for kind, folder in sites:
        order.append((kind, folder))
        added, mapping = pth_entries(folder)
        order += [("editable", path) for path in added]
        finders += sorted(mapping.items())
    return order, finders, [folder for _, folder in sites]


def resolve(package, order, finders):
    """[(kind, folder of the package)]: the first is imported, the rest are shadowed."""
    found = []
    for kind, folder in order:
        path = os.path.join(folder, package)
        if folder and os.path.isfile(os.path.join(path, "__init__.py")):
            found.append((kind, path))
    found += [("editable", path) for name, path in finders if name == package and os.path.isdir(path)]
    unique = {}
    for kind, path in found:
        unique.setdefault(os.path.realpath(path), (kind, path))
    return list(unique.values())


def version_of(package_path):
    for name in ("_version.py", "version.py", "__init__.py"):
        match = re.search(
            r"^__version__.*?=\s*['\"]([\w.+!-]+)['\"]", read(os.path.join(package_path, name)) or "", re.M
        )
        if match and not match.group(1).startswith("0.0.0"):
            return match.group(1)
    parent, package = os.path.split(package_path)
    try:
        for name in sorted(os.listdir(parent)):
            match = re.match(re.escape(package) + r"-(.+)\.(dist|egg)-info$", name)
            if match:
                return match.group(1)
    except OSError:
        pass
    return None


def distributions(sites):
    """Versions by distribution name and the plug-in entry points of some site folders."""
    versions, plugins = {}, []
    for site in sites:
        try:
            names = os.listdir(site)
        except OSError:
            continue
        for name in names:
            match = re.match(r"(.+?)-([^-]+)\.(?:dist|egg)-info$", name)
            if not match:
                continue
            versions.setdefault(match.group(1).lower().replace("_", "-"), match.group(2))
            text = read(os.path.join(site, name, "entry_points.txt")) or ""
            group = ""
            for line in text.splitlines():
                if line.startswith("["):
                    group = line.strip("[] ")
                elif "=" in line and group in PLUGIN_GROUPS:
                    key, _, value = line.partition("=")
                    plugins.append(
                        {
                            "group": group,
                            "name": key.strip(),
                            "value": value.strip(),
                            "dist": match.group(1),
                            "version": match.group(2),
                            "site": site,
                        }
                    )
    return versions, plugins


def python_facts(facts, env):
    """What a serving python process imports, from its own flags, environment, working folder and path files."""
    started, prefix, venv = interpreter(facts["argv"], facts["exe"], env)
    order, finders, sites = search_path(facts["argv"], facts["cwd"], env, prefix, venv)
    versions, plugins = distributions([folder for _, folder in order if folder])
    packages = {}
    for package in ("sglang", "vllm"):
        found = resolve(package, order, finders)
        if found:
            kind, path = found[0]
            packages[package] = {
                "path": path,
                "kind": kind,
                "version": version_of(path),
                "shadowed": [p for _, p in found[1:]],
            }
    return {
        "interpreter": started,
        "prefix": prefix,
        "venv": venv,
        "sites": sites,
        "packages": packages,
        "distributions": versions,
        "plugins": plugins,
    }


def servers(options, gpu_pids):
    """Serving processes with their environments; everything else that holds a GPU or the port, by name."""
    own, sockets, hidden = ancestors(), listening(), 0
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            facts = process_facts(int(name))
            if facts:
                table[facts["pid"]] = facts
    result, others = [], []
    for pid, facts in sorted(table.items()):
        engine, role = role_of(facts["argv"])
        if engine and role == "server":
            env = environment(pid)
            if env is None:
                hidden += 1
            children = [p for p in table if table[p]["ppid"] == pid]
            maps = sorted({root for p in [pid, *children] for root in mapped_packages(p)})
            facts.update(
                engine=engine,
                env=env,
                ports=ports_of(pid, sockets),
                maps=maps,
                children=children,
                limits=read("/proc/%d/limits" % pid),
            )
            if engine in ("sglang", "vllm"):
                facts["python"] = python_facts(facts, env or {})
            facts["argv"] = mask_argv(facts["argv"])
            result.append(facts)
        elif engine or pid in gpu_pids:
            others.append(
                {
                    "pid": pid,
                    "ppid": facts["ppid"],
                    "argv": mask_argv(facts["argv"])[:12],
                    "unit": facts["unit"],
                    "uid": facts["uid"],
                    "engine": engine,
                    "role": role,
                }
            )
    return {"servers": result, "others": others, "hidden": hidden, "listening": sorted(set(sockets.values()))}


def children_first(found):
    """Only the outermost of nested server processes: a launcher's forks carry the same command line."""
    pids = {facts["pid"] for facts in found}
    return [facts for facts in found if facts["ppid"] not in pids]


# ---------------------------------------------------------------- copies on the disk


def copies(roots, deadline):
    """Every folder that holds an sglang or vllm package below the roots, breadth first, until the deadline."""
    found, queue, seen = {}, [(root, 0) for root in roots], set()
    while queue:
        if time.monotonic() > deadline:
            return found, True
        folder, depth = queue.pop(0)
        try:
            with os.scandir(folder) as scan:
                entries = [e.name for e in scan if e.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        key = os.path.realpath(folder)
        if key in seen:
            continue
        seen.add(key)
        for package, mark in (("sglang", "srt"), ("vllm", "engine")):
            path = os.path.join(folder, package)
            if (
                package in entries
                and os.path.isdir(os.path.join(path, mark))
                and os.path.isfile(os.path.join(path, "__init__.py"))
            ):
                found[path] = {"package": package, "path": path, "version": version_of(path)}
        if os.path.basename(folder) in ("site-packages", "dist-packages") or depth >= 7:
            continue
        for name in entries:
            hidden = name.startswith(".") and name not in (".local", ".venv", ".conda", ".virtualenvs", ".pyenv")
            if (name not in PRUNED and not hidden and name not in ("sglang", "vllm")) or (
                name in ("sglang", "vllm") and os.path.join(folder, name) not in found
            ):
                queue.append((os.path.join(folder, name), depth + 1))
    return found, False


# ---------------------------------------------------------------- GPUs, system, unit, server


GPU_COMMANDS = {
    "gpus": [
        "nvidia-smi",
        "--query-gpu=index,name,uuid,compute_cap,memory.total,memory.used,memory.free,driver_version,mig.mode.current,ecc.mode.current,"
        "clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,clocks_throttle_reasons.active,persistence_mode,utilization.gpu",
        "--format=csv,nounits",
    ],
    "apps": ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,nounits"],
    "list": ["nvidia-smi", "-L"],
    "header": ["nvidia-smi"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "p2p": ["nvidia-smi", "topo", "-p2p", "r"],
}


def system_facts(paths):
    disks = {}
    for path in ["/", *paths]:
        probe = path
        while probe and not os.path.exists(probe):
            probe = os.path.dirname(probe)
        try:
            stat = os.statvfs(probe or "/")
            disks[path] = {
                "free_bytes": stat.f_bavail * stat.f_frsize,
                "total_bytes": stat.f_blocks * stat.f_frsize,
                "read_only": bool(stat.f_flag & os.ST_RDONLY),
            }
        except OSError:
            disks[path] = None
    cpuinfo = read("/proc/cpuinfo", 4 << 20) or ""
    one = read("/proc/1/environ")
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "glibc": "-".join(platform.libc_ver()),
        "os_release": read("/etc/os-release") or "",
        "uid": os.getuid(),
        "hostname": platform.node(),
        "cpu_model": (re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.M) or [None, ""])[1],
        "cpu_flags": (re.search(r"^flags\s*:\s*(.*)$", cpuinfo, re.M) or [None, ""])[1],
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "meminfo": read("/proc/meminfo") or "",
        "loadavg": read("/proc/loadavg") or "",
        "limits": read("/proc/self/limits") or "",
        "disks": disks,
        "cmdline": read("/proc/cmdline") or "",
        "dockerenv": os.path.exists("/.dockerenv"),
        "init_container": (re.search(r"(?:^|\0)container=([^\0]*)", one) or [None, ""])[1] if one is not None else None,
        "container_file": read("/run/systemd/container") or "",
        "cgroup": read("/proc/1/cgroup") or "",
        "proxmox_host": os.path.isdir("/etc/pve/lxc"),
        "nvidia_driver_file": read("/proc/driver/nvidia/version") or "",
        "python": platform.python_version(),
        "systemd_booted": os.path.isdir("/run/systemd/system"),
    }


UNIT_KEYS = (
    "Id,LoadState,ActiveState,SubState,MainPID,NRestarts,Result,FragmentPath,DropInPaths,ExecStart,Environment,EnvironmentFiles,User,WorkingDirectory,"
    "Restart,KillMode,TimeoutStartUSec,TimeoutStopUSec,LimitMEMLOCK,LimitNOFILE,UnitFileState,ActiveEnterTimestamp,NeedDaemonReload"
)


def server_info(port):
    """The server's own account of its resolved arguments (GET only); None if nothing answers."""
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ("/server_info", "/get_server_info"):
        try:
            with opener.open("http://127.0.0.1:%d%s" % (port, path), timeout=1.5) as answer:
                data = json.loads(answer.read(4 << 20).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return {"denied": error.code}
            continue
        except (OSError, ValueError):
            return None
        if isinstance(data, dict):
            return {
                k: MASK if SECRET_NAME.search(k) and isinstance(v, str) and "token" not in k.lower() else v
                for k, v in data.items()
                if len(json.dumps(v)) < 4000
            }
    return None


def probe(options):
    started = time.monotonic()
    seconds = float(options.get("seconds", 4.0))
    running = {name: command(argv, seconds) for name, argv in GPU_COMMANDS.items()}
    running["systemd"] = command(["systemctl", "--version"], 2.0)
    running["virt"] = command(["systemd-detect-virt"], 2.0)
    unit = options.get("unit")
    if unit:
        running["unit"] = command(["systemctl", "show", unit, "-p", UNIT_KEYS], 2.0)
        running["unit_cat"] = command(["systemctl", "cat", unit, "--no-pager"], 2.0)
    system = system_facts(options.get("paths", []))
    texts = {name: collect(item) for name, item in running.items()}
    for name in ("unit", "unit_cat"):
        if name in texts:
            texts[name]["out"] = mask_text(texts[name]["out"])
    gpu_pids = {int(m) for m in re.findall(r"^[^,\n]+,\s*(\d+),", texts["apps"]["out"], re.M)}
    processes = servers(options, gpu_pids)
    processes["servers"] = children_first(processes["servers"])
    info, ports = None, options.get("ports", [])
    for port in ports + [
        p for facts in processes["servers"] if facts["engine"] == "sglang" for p in facts["ports"] or []
    ]:
        if port in processes["listening"] and info is None:
            info = server_info(port)
            info = None if info is None else {"port": port, "data": info}
    roots = [
        r
        for r in options.get("roots")
        or [
            *options.get("extra_roots", []),
            "/opt",
            "/srv",
            "/home",
            "/root",
            "/usr/local",
            "/usr/lib",
            "/data",
            "/workspace",
            "/app",
            "/var/lib",
        ]
        if os.path.isdir(r)
    ]
    extra = [facts["cwd"] for facts in processes["servers"] if facts["cwd"] not in (None, "/")]
    found, truncated = copies(roots + extra, started + seconds)
    return {
        "processes": processes,
        "commands": texts,
        "system": system,
        "server_info": info,
        "copies": sorted(found.values(), key=lambda c: c["path"]),
        "copies_truncated": truncated,
        "scan_roots": roots,
        "seconds": round(time.monotonic() - started, 3),
    }


# ---------------------------------------------------------------- reading files


def files(options):
    root, wanted, missing = options["root"], {}, []
    names = list(options.get("files", []))
    listing = []
    for folder, _folders, contents in os.walk(root):
        relative = os.path.relpath(folder, root)
        for name in contents:
            path = name if relative == "." else os.path.join(relative, name)
            if any(fnmatch.fnmatch(path, pattern) for pattern in options.get("globs", [])):
                names.append(path)
        if options.get("listing"):
            listing += [
                [n, os.path.getsize(os.path.join(folder, n))]
                for n in sorted(contents)
                if os.path.exists(os.path.join(folder, n))
            ]
            break
        if not options.get("globs"):
            break
    for name in dict.fromkeys(names):
        text = read(os.path.join(root, name), int(options.get("max_bytes", 2 << 20)))
        if text is None:
            missing.append(name)
        else:
            wanted[name] = text
    packed = base64.b64encode(zlib.compress(json.dumps(wanted).encode(), 6)).decode()
    return {
        "root": root,
        "exists": os.path.isdir(root),
        "readable": os.access(root, os.R_OK | os.X_OK),
        "packed": packed,
        "missing": missing,
        "listing": listing,
    }


def main():
    mode, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(probe(options) if mode == "probe" else files(options)))


if __name__ == "__main__":
    main()
