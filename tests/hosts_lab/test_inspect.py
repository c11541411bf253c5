"""inspect on a host with four SGLang copies: the one that serves is named, quickly, and nothing on the host changes."""

from __future__ import annotations

import hashlib
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import operations
from orchestrator.documents import encode
from orchestrator.errors import PlanStaleError
from orchestrator.hosts.inventory import Inventory
from orchestrator.hosts.session import open_session
from orchestrator.remote.venvs import environment_of_process
from orchestrator.store.store import open_store
from tasks.inspecting import Scope, inspect_host
from tasks.inspecting.inspection import Inspection
from tests.hosts_lab.lab import REPOSITORY, LabHost

PORT = 30000
HOME = "/home/deploy"
SITE = "lib/python3.11/site-packages"
VENV, OTHER, CHECKOUT = "/opt/sglang/venv", "/srv/other/venv", f"{HOME}/sglang/python"
COPIES = {
    f"{VENV}/{SITE}": "0.5.20",
    f"{OTHER}/{SITE}": "0.5.16",
    CHECKOUT: "0.5.11",
    f"{HOME}/.local/{SITE}": "0.5.23",
}
PAIR = REPOSITORY / "engine" / "models" / "tiny-hybrid"
FLAGS = (
    "--model-path /models/target --speculative-draft-model-path /models/draft --speculative-algorithm DFLASH "
    "--speculative-num-draft-tokens 16 --api-key sk-secret-77"
)
# Says of itself where it was imported from: the truth that inspect is compared with.
SERVER = """
import http.server, json, os, sys
import sglang

port = int(sys.argv[sys.argv.index("--port") + 1])
truth = {"package": os.path.dirname(sglang.__file__), "speculative_algorithm": "DFLASH", "max_running_requests": 4}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(truth).encode())

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
FINDER = f"""
import os, sys
from importlib.machinery import PathFinder

MAPPING = {{'sglang': '{CHECKOUT}/sglang'}}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, [os.path.dirname(MAPPING[name])]) if name in MAPPING else None


def install():
    sys.meta_path.append(Finder)
"""


def package(folder: str, version: str) -> dict[str, bytes]:
    """A stand-in for sglang with metadata, as pip leaves it (a checkout has none)."""
    files = {
        "sglang/__init__.py": "",
        "sglang/_version.py": f"__version__ = version = '{version}'\n",
        "sglang/launch_server.py": SERVER,
        "sglang/srt/__init__.py": "",
        "sglang/srt/speculative/dflash_worker_v2.py": "class DFlashWorkerV2:\n    pass\n",
    }
    if folder != CHECKOUT:
        info = f"sglang-{version}.dist-info"
        files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files)
    return {f"{folder}/{name}": text.encode() for name, text in files.items()}


@pytest.fixture(scope="module")
def crowded() -> Iterator[LabHost]:
    """A host with a service venv, another venv, a stale checkout and a user site, each with its own sglang."""
    files: dict[str, bytes] = {}
    for folder, version in COPIES.items():
        files |= package(folder, version)
    for file in (path for path in PAIR.rglob("*") if path.is_file()):
        files[f"/models/{file.relative_to(PAIR)}"] = file.read_bytes()
    files["/opt/sglang/start.sh"] = (
        f"#!/bin/sh\n. {VENV}/bin/activate\nexec python -m sglang.launch_server --port {PORT} {FLAGS}\n".encode()
    )
    host = LabHost("crowded", files, executables=("/opt/sglang/start.sh",)).up()
    try:
        host.inside(f"python3 -m venv --without-pip {OTHER} && chown -R deploy: {HOME}")
        yield host
    finally:
        host.down()


def serve(host: LabHost, python: str, user: str = "deploy", more: str = "", command: str = "") -> dict[str, str]:
    """Start the unit in one of many ways; {package, pid} as the server itself and systemd say."""
    start = command or f"{python} -m sglang.launch_server --port {PORT} {FLAGS}"
    unit = f"[Service]\nUser={user}\nExecStart={start}\n{more}\n[Install]\nWantedBy=multi-user.target\n"
    host.inside(f"cat > /etc/systemd/system/sglang.service <<'EOF'\n{unit}EOF\n")
    host.inside("systemctl daemon-reload && systemctl restart sglang.service")
    ask = textwrap.dedent(f"""
        import json, time, urllib.request
        end = time.monotonic() + 60
        while True:
            try:
                print(json.load(urllib.request.urlopen('http://127.0.0.1:{PORT}/server_info', timeout=5))['package'])
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.1)
    """)
    served = host.inside(f'python3 -I -c "{ask}"', timeout_s=90).strip()
    return {"package": served, "pid": host.inside("systemctl show sglang -p MainPID --value").strip()}


def look(host: LabHost, state: Path, **changes: object) -> Inspection:
    (state / "known_hosts").write_text(host.pinned_line())
    config = host.config(**changes)
    with open_session(config, state) as session:
        return inspect_host(session.transport, config)


WAYS = {
    "environment": ({"python": f"{VENV}/bin/python"}, f"{VENV}/{SITE}", "site-packages"),
    "wrapper script": ({"python": "", "command": "/opt/sglang/start.sh"}, f"{VENV}/{SITE}", "site-packages"),
    "other environment": ({"python": f"{OTHER}/bin/python3"}, f"{OTHER}/{SITE}", "site-packages"),
    "user site": ({"python": "/usr/bin/python3"}, f"{HOME}/.local/{SITE}", "user-site"),
    "checkout on PYTHONPATH": (
        {"python": f"{VENV}/bin/python", "more": f"Environment=PYTHONPATH={CHECKOUT}"}, CHECKOUT, "pythonpath",
    ),
    "checkout as working folder": (
        {"python": f"{VENV}/bin/python", "more": f"WorkingDirectory={CHECKOUT}"}, CHECKOUT, "cwd",
    ),
    "root's service": (
        {"python": f"{VENV}/bin/python", "user": "root", "more": f"Environment=PYTHONPATH={CHECKOUT}"},
        CHECKOUT, "pythonpath",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_copy_that_serves_is_named_and_a_release_would_clone_the_same(
    way: str, crowded: LabHost, tmp_path: Path
) -> None:
    how, folder, kind = WAYS[way]
    truth = serve(crowded, **how)
    assert truth["package"] == f"{folder}/sglang"
    document = look(crowded, tmp_path).document
    found = document["sglang"]
    assert (found["package_path"], found["package_kind"]) == (truth["package"], kind)
    assert (found["version"], str(found["service"]["pid"])) == (COPIES[folder], truth["pid"])
    assert (found["service"]["unit"], found["service"]["algorithm"]) == ("sglang.service", "DFLASH")
    unused = {copy["path"]: copy["version"] for copy in found["unused_copies"]}
    assert unused == {f"{other}/sglang": version for other, version in COPIES.items() if other != folder}
    assert document["not_seen"] == []
    with open_session(crowded.config(), tmp_path) as session:
        cloned = environment_of_process(session.transport, int(truth["pid"]), sudo=True)
    assert (cloned.package_path, cloned.prefix) == (found["package_path"], found["service"]["prefix"])


@pytest.mark.parametrize("style", ["path file", "finder"])
def test_an_editable_install_is_named(style: str, crowded: LabHost, tmp_path: Path) -> None:
    site = f"{VENV}/{SITE}"
    crowded.inside(f"mv {site}/sglang {site}/sglang.away")
    try:
        if style == "path file":
            crowded.inside(f"echo {CHECKOUT} > {site}/__editable__.sglang.pth")
        else:
            crowded.inside(f"cat > {site}/__editable___sglang_finder.py <<'EOF'\n{FINDER}EOF\n")
            crowded.inside(
                f"echo 'import __editable___sglang_finder as f; f.install()' > {site}/__editable__.sglang.pth"
            )
        truth = serve(crowded, f"{VENV}/bin/python")
        found = look(crowded, tmp_path).document["sglang"]
        assert (found["package_path"], found["package_kind"]) == (truth["package"], "editable")
        assert truth["package"] == f"{CHECKOUT}/sglang"
        with open_session(crowded.config(), tmp_path) as session:
            assert (
                environment_of_process(session.transport, int(truth["pid"]), sudo=True).package_path == truth["package"]
            )
    finally:
        crowded.inside(f"rm -f {site}/__editable__* && mv {site}/sglang.away {site}/sglang")


def test_a_renamed_flag_in_the_unit_is_named_with_its_new_name(crowded: LabHost, tmp_path: Path) -> None:
    crowded.inside(f"sed -i s/0.5.20/0.5.23/ {VENV}/{SITE}/sglang/_version.py")
    try:
        old = f"--port {PORT} {FLAGS} --mamba-scheduler-strategy extra_buffer"
        serve(crowded, "", command=f"{VENV}/bin/python -m sglang.launch_server {old}")
        document = look(crowded, tmp_path).to_json()
    finally:
        crowded.inside(f"sed -i s/0.5.23/0.5.20/ {VENV}/{SITE}/sglang/_version.py")
    (flag,) = document["sglang"]["flags"]
    assert (flag["option"], flag["became"]) == ("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy")
    (risk,) = [risk for risk in document["risks"] if "--mamba-scheduler-strategy" in risk["evidence"]]
    assert "--mamba-radix-cache-strategy" in risk["evidence"] + risk["what_to_do"]


def test_without_sudo_it_says_what_it_could_not_see(crowded: LabHost, tmp_path: Path) -> None:
    serve(crowded, f"{VENV}/bin/python", "root", f"Environment=PYTHONPATH={CHECKOUT}")
    told = look(crowded, tmp_path, sudo={"method": "none"}).document["not_seen"]
    assert any("belong to another user" in note for note in told)
    assert any("PYTHONPATH" in note for note in told)
    crowded.inside("mv /etc/sudoers.d/deploy /root/sudoers")
    try:
        refused = look(crowded, tmp_path).document
    finally:
        crowded.inside("mv /root/sudoers /etc/sudoers.d/deploy")
    assert any(note.startswith("root could not be used") for note in refused["not_seen"])
    assert refused["sglang"]["service"]["algorithm"] == "DFLASH"


LOGINS = {"var/log", "var/lib/sudo"}  # what a login and sudo themselves write


def disk_state(host: LabHost) -> dict[str, str]:
    """Every path of the host's own layer and of its temporary folders: kind, mode, owner, times and content."""
    found = {}
    for path in sorted(host.disk.rglob("*")):
        name = str(path.relative_to(host.disk))
        if not any(name == log or name.startswith(log + "/") for log in LOGINS):
            stat = path.lstat()
            whole = path.is_file() and not path.is_symlink()
            content = (
                hashlib.sha256(path.read_bytes()).hexdigest() if whole else path.is_symlink() and os.readlink(path)
            )
            found[name] = f"{stat.st_mode} {stat.st_uid} {stat.st_mtime_ns} {stat.st_ctime_ns} {content}"
    listing = host.inside(
        "find /tmp /dev/shm /run -xdev -type f -newer /run/mark ! -path '/run/systemd/*' ! -name motd.dynamic -print"
    )
    return {**found, "new temporary files": " ".join(listing.split())}


def test_nothing_on_the_host_changes_and_it_is_quick(crowded: LabHost, tmp_path: Path) -> None:
    serve(crowded, f"{VENV}/bin/python", "root")
    (tmp_path / "known_hosts").write_text(crowded.pinned_line())
    config = crowded.config()
    with open_session(config, tmp_path) as session:
        assert session.transport.run(["id"], sudo=True).ok
        crowded.inside("touch /run/mark")
        before = disk_state(crowded)
        assert len(before) > 50
        commands = 0
        run = session.transport.run

        def counted(*arguments: object, **options: object) -> object:
            nonlocal commands
            commands += 1
            return run(*arguments, **options)  # type: ignore[arg-type]

        session.transport.run = counted  # type: ignore[method-assign, assignment]
        started, used = time.monotonic(), time.process_time()
        found = inspect_host(session.transport, config)
        took = time.monotonic() - started
    after = disk_state(crowded)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()
    assert found.document["sglang"]["service"]["prefix"] == VENV
    assert commands <= 3
    print(
        f"\ninspect over SSH: {took:.2f} s, {commands} commands, {time.process_time() - used:.2f} s of CPU here, "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    )


def test_a_change_by_somebody_would_be_noticed(crowded: LabHost) -> None:
    """The control of the test above: one byte of one file of the host."""
    crowded.inside("touch /run/mark")
    before = disk_state(crowded)
    crowded.inside(f"echo >> {VENV}/{SITE}/sglang/srt/__init__.py; echo > /tmp/left-behind")
    changed = {name for name, state in disk_state(crowded).items() if before.get(name) != state}
    crowded.inside("rm /tmp/left-behind")
    assert f"opt/sglang/venv/{SITE}/sglang/srt/__init__.py" in changed
    assert {"tmp/left-behind", "new temporary files"} <= changed | {"tmp/left-behind"}


def test_the_scope_of_a_host_allows_root_only_as_its_inventory_does(crowded: LabHost) -> None:
    assert Scope.of(crowded.config()).sudo
    assert not Scope.of(crowded.config(sudo={"method": "none"})).sudo


def test_a_plan_says_what_would_change_touches_nothing_and_is_refused_after_drift(
    crowded: LabHost, tmp_path: Path
) -> None:
    serve(crowded, f"{VENV}/bin/python")
    (tmp_path / "known_hosts").write_text(crowded.pinned_line())
    config, settings = crowded.config(), {"nodes": "31"}
    graph = operations.build_graph("deploy-ddtree", config, settings)
    store = open_store(f"sqlite:///{tmp_path}/state.db")
    place = operations.Workplace(tmp_path, Inventory(hosts={config.name: config}, path=tmp_path / "hosts.yaml"), store)
    try:
        crowded.inside("touch /run/mark")
        before = disk_state(crowded)
        plan = operations.plan_graph(place, graph, config, settings)
        assert disk_state(crowded) == before
        changes = {(task.key, change.kind): change for task in plan.tasks for change in task.changes}
        assert changes["build-release", "release"].target.startswith("/opt/ddtree/releases/ddtree-")
        assert changes["canary", "process"].detail.endswith(
            "tree of 31 nodes (T = 32, 4 requests), beside the live service"
        )
        drop_in = changes["cutover", "unit"]
        assert drop_in.target == "/etc/systemd/system/sglang.service.d/50-orchestrate.conf"
        assert "+ExecStart=" in drop_in.diff
        assert "--speculative-num-draft-tokens 32" in drop_in.diff
        assert "no connection is refused, because an engine stands in" in changes["cutover", "service"].detail
        saved = tmp_path / "plan.json"
        saved.write_text(encode(operations.plan_document(plan, graph)))
        assert operations.plan_graph(place, graph, config, settings).plan_id == plan.plan_id
        serve(crowded, f"{VENV}/bin/python", more="Environment=SGLANG_SOMETHING=1")
        with pytest.raises(PlanStaleError, match="build-release"):
            operations.run_graph(place, graph, config, settings, plan_file=saved)
        assert place.store.runs.latest(config.name, graph.name) is None
    finally:
        store.close()
