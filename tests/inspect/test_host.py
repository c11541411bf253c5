"""inspect_host on real processes: the copy that is really imported is found, whatever lies beside it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.transport.base import SudoUnavailable
from tasks.inspecting import Scope, inspect_host
from tasks.inspecting.inspection import look
from tasks.inspecting.probe import AsRoot
from tests.inspect.conftest import LocalTransport, Start, make_package, make_venv

ARGS = ["--model-path", "/nowhere/model", "--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "16"]
ARGS += ["--api-key", "sk-live-1"]


def launch(python: Path, port: int) -> list[str]:
    return [str(python), "-m", "sglang.launch_server", "--port", str(port), *ARGS]


def scope(scratch: Path, port: int) -> Scope:
    return Scope("here", port=port, roots=(str(scratch),), systemd=False)


@pytest.fixture
def crowded(scratch: Path) -> dict[str, Path]:
    """A host with a service venv, another venv, a stale checkout and a user site, each with its own sglang."""
    python, site = make_venv(scratch / "service")
    _, other = make_venv(scratch / "other")
    user = scratch / "home" / ".local" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    return {
        "python": python,
        "service": make_package(site, "0.5.20"),
        "other": make_package(other, "0.5.16"),
        "checkout": make_package(scratch / "sglang-src" / "python", "0.5.11"),
        "user": make_package(user, "0.5.23"),
    }


def test_site_packages_of_the_service_wins(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path, crowded: dict[str, Path]
) -> None:
    process = start(launch(crowded["python"], free_port), free_port, env={"HOME": str(scratch / "home")})
    found = inspect_host(transport, scope(scratch, free_port)).to_json()["sglang"]
    assert found["package_path"] == str(crowded["service"])
    assert (found["package_kind"], found["version"]) == ("site-packages", "0.5.20")
    assert found["service"]["pid"] == process.pid
    assert found["service"]["algorithm"] == "DFLASH"
    here = [copy for copy in found["unused_copies"] if copy["path"].startswith(str(scratch))]
    unused = {copy["path"]: copy["version"] for copy in here}
    assert unused == {str(crowded[k]): v for k, v in (("other", "0.5.16"), ("checkout", "0.5.11"), ("user", "0.5.23"))}


def test_a_server_that_asks_for_a_key_tells_its_arguments_to_whoever_has_it(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path, crowded: dict[str, Path]
) -> None:
    env = {"HOME": str(scratch / "home"), "KEY_OF_THE_STANDIN": "key-of-this-test"}
    start(launch(crowded["python"], free_port), free_port, env=env)
    for key, told in (("key-of-this-test", 4), ("another", None), (None, None)):
        facts, serving, _ = look(transport, scope(scratch, free_port), key=key)
        assert serving is not None
        assert serving.resolved.get("max_running_requests") == told
        assert "key-of-this-test" not in json.dumps(facts)


def test_pythonpath_hides_site_packages(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path, crowded: dict[str, Path]
) -> None:
    start(launch(crowded["python"], free_port), free_port, env={"PYTHONPATH": str(crowded["checkout"].parent)})
    document = inspect_host(transport, scope(scratch, free_port)).to_json()
    found = document["sglang"]
    assert (found["package_path"], found["package_kind"]) == (str(crowded["checkout"]), "pythonpath")
    assert found["shadowed"] == [str(crowded["service"])]
    assert {"editable-install", "shadowed-package"} <= {risk["id"] for risk in document["risks"]}


def test_working_folder_hides_everything(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path, crowded: dict[str, Path]
) -> None:
    start(launch(crowded["python"], free_port), free_port, cwd=crowded["checkout"].parent)
    found = inspect_host(transport, scope(scratch, free_port)).to_json()["sglang"]
    assert (found["package_path"], found["package_kind"]) == (str(crowded["checkout"]), "cwd")


@pytest.mark.parametrize("style", ["path file", "finder"])
def test_editable_install(style: str, transport: LocalTransport, start: Start, free_port: int, scratch: Path) -> None:
    python, site = make_venv(scratch / "service")
    package = make_package(scratch / "checkout" / "python", "0.5.20")
    if style == "path file":
        (site / "sglang.pth").write_text(f"{package.parent}\n")
    else:
        mapping = {"sglang": str(package)}
        (site / "__editable___sglang_0_5_20_finder.py").write_text(FINDER.format(mapping=mapping))
        (site / "__editable__.sglang.pth").write_text("import __editable___sglang_0_5_20_finder as f; f.install()\n")
    start(launch(python, free_port), free_port)
    found = inspect_host(transport, scope(scratch, free_port)).to_json()["sglang"]
    assert (found["package_path"], found["package_kind"]) == (str(package), "editable")


FINDER = """
import sys
from importlib.machinery import PathFinder

MAPPING: dict[str, str] = {mapping!r}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        import os
        if name in MAPPING:
            return PathFinder.find_spec(name, [os.path.dirname(MAPPING[name])])


def install():
    sys.meta_path.append(Finder)
"""


def test_the_process_agrees(
    start: Start, free_port: int, scratch: Path, crowded: dict[str, Path], transport: LocalTransport
) -> None:
    """What inspect resolves is what the same interpreter, environment and folder really import."""
    env = {"PYTHONPATH": f"{scratch / 'empty'}:{crowded['other'].parent}"}
    start(launch(crowded["python"], free_port), free_port, env=env)
    found = inspect_host(transport, scope(scratch, free_port)).to_json()["sglang"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    truth = subprocess.run(
        [crowded["python"], "-c", "import sglang; print(sglang.__path__[0])"],
        env={**clean, **env},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found["package_path"] == truth.stdout.strip()


def test_secrets_stay_on_the_host(transport: LocalTransport, start: Start, free_port: int, scratch: Path) -> None:
    python, site = make_venv(scratch / "service")
    make_package(site, "0.5.20")
    start(launch(python, free_port), free_port, env={"HF_TOKEN": "hf-secret-2", "SGLANG_API_KEY": "sk-live-1"})
    document = inspect_host(transport, scope(scratch, free_port)).to_json()
    answer = json.dumps(document)
    assert "sk-live-1" not in answer
    assert "hf-secret-2" not in answer
    assert "***" in answer
    assert document["sglang"]["service"]["given"]["speculative_num_draft_tokens"] == "16"  # tokens are no secret


def test_nothing_changes_on_the_host(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path, crowded: dict[str, Path]
) -> None:
    start(launch(crowded["python"], free_port), free_port)

    def state() -> dict[str, str]:
        return {
            str(
                path
            ): f"{path.lstat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ''}"
            for path in sorted(scratch.rglob("*"))
        }

    before = state()
    inspect_host(transport, scope(scratch, free_port))
    assert state() == before
    assert transport.commands <= 2


def test_a_host_without_python(tmp_path: Path) -> None:
    from tasks.inspecting.probe import ProbeFailed, host_facts

    class NoPython(LocalTransport):
        def run(self, argv, **options):  # type: ignore[no-untyped-def]
            return super().run(["/nonexistent/" + argv[0], *argv[1:]], **options)

    with pytest.raises(ProbeFailed, match="has no python3, which inspect needs"):
        host_facts(NoPython(), {})


def test_a_process_that_changed_its_title(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path
) -> None:
    """The command line is gone; the environment is found through the modules that the process mapped."""
    python, site = make_venv(scratch / "service")
    package = make_package(site, "0.5.20")
    native = site / "native.so"
    native.write_bytes(Path(os.path.realpath(python)).read_bytes()[:65536])
    code = (
        f"import mmap, sys; f = open({str(native)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
        f"sys.argv += ['--port', '{free_port}']; import sglang.launch_server"
    )
    env = {"PYTHONPATH": str(site)}
    start(["bash", "-c", f'exec -a sglang::server {python} -c "{code}"'], free_port, env=env)
    found = inspect_host(transport, scope(scratch, free_port)).to_json()["sglang"]
    assert found["package_path"] == str(package)
    assert found["service"]["prefix"] == str(scratch / "service")


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root to become another user")
def test_a_login_without_rights_says_what_it_could_not_see(start: Start, free_port: int, scratch: Path) -> None:
    python, site = make_venv(scratch / "service")
    make_package(site, "0.5.20")
    start(launch(python, free_port), free_port)

    class Nobody(LocalTransport):
        def run(self, argv, **options):  # type: ignore[no-untyped-def]
            return super().run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv], **options)

    document = inspect_host(Nobody(), scope(scratch, free_port)).to_json()
    assert any("belong to another user" in note for note in document["not_seen"])
    assert "sk-live-1" not in json.dumps(document)


def test_a_folder_named_like_the_package_is_no_second_copy(
    transport: LocalTransport, start: Start, free_port: int, scratch: Path
) -> None:
    """Shared objects below …/sglang/venv/… say nothing about which package was imported."""
    python, site = make_venv(scratch / "sglang" / "venv")
    make_package(site, "0.5.20")
    native = site / "native.so"
    native.write_bytes(b"x" * 4096)
    code = (
        f"import mmap, sys; f = open({str(native)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
        f"sys.argv += ['--port', '{free_port}']; import sglang.launch_server"
    )
    env = {"PYTHONPATH": str(site)}
    start(["bash", "-c", f'exec -a sglang::server {python} -c "{code}"'], free_port, env=env)
    assert inspect_host(transport, scope(scratch, free_port)).to_json()["sglang"]["conflict"] is None


STANDALONE = """
import http.server, json, mmap, sys

port, library = int(sys.argv[2]), open(sys.argv[3], "r+b")
mapped = mmap.mmap(library.fileno(), 0)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"object": "list", "data": [{"id": "tree"}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("folder", "option", "seen"),
    [("torch", "--port", True), ("other", "--port", False), ("torch", "--master-port", False)],
    ids=["server", "without torch", "training job"],
)
def test_a_stand_alone_ddtree_server_is_recognised(
    folder: str, option: str, seen: bool, transport: LocalTransport, start: Start, free_port: int, scratch: Path
) -> None:
    library = scratch / folder / "lib" / "libtorch.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(bytes(4096))
    script = scratch / "serve_ddtree.py"
    script.write_text(STANDALONE)
    process = start([sys.executable, script, option, str(free_port), library], free_port)
    found = inspect_host(transport, scope(scratch, free_port + 1)).to_json()["other_engines"]
    mine = [one for one in found if one["pid"] == process.pid]
    assert bool(mine) is seen
    for one in mine:
        assert f"DDTREE server on port {free_port}" in one["engine"]
        assert "left running" in one["why"]


def test_root_refused_at_once_leaves_what_the_login_sees(
    transport: LocalTransport, free_port: int, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SudoUnavailable("sudo was refused")

    monkeypatch.setattr(AsRoot, "run", refuse)
    facts, _, _ = look(transport, scope(scratch, free_port), as_root=True)
    assert facts["sudo_refused"] == "sudo was refused"
    assert facts["processes"]
