"""`orchestrate bench --tree-server`: a server started by hand on a real embedded host, measured over SSH, left running."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.bench.rows import Row
from orchestrator.cli import main
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport.embedded import embedded_home, remove_embedded
from tasks import benchmark
from tasks.other_server import find_server
from tests.bench import stub_server
from tests.e2e.conftest import free_ports

STUB = Path(stub_server.__file__)
LINEAR = {"step_s": 0.004, "accept": [1], "algorithm": "DFLASH"}
FAST = {"step_s": 0.004, "accept": [8]}
QUICK = ("--max-tokens", "32", "--set", "group_size=1")


@dataclass
class Place:
    """A host whose linear service is a stand-in, and the command line on it."""

    home: Path
    port: int
    session: HostSession
    capsys: pytest.CaptureFixture[str]

    def call(self, *argv: str, code: int = 0) -> dict[str, Any]:
        self.capsys.readouterr()
        found = main.run([*argv, "--json", "--hosts", str(self.home / "hosts.yaml")])
        said = self.capsys.readouterr()
        assert found == code, said.err[-3000:]
        document: dict[str, Any] = json.loads(said.out)
        return document

    @contextmanager
    def by_hand(self, **script: Any) -> Iterator[int]:
        """A server of somebody's own on the next port; it must be the same process afterwards. Yields its pid."""
        command = [sys.executable, str(STUB), "--port", str(self.port + 1), "--script", json.dumps(script)]
        with subprocess.Popen(command) as process:
            try:
                answers(self.port + 1)
                yield process.pid
                assert process.poll() is None
                answers(self.port + 1)
            finally:
                process.kill()


def answers(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).status_code == 200
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"port {port} does not answer")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], busy_machine: None) -> Iterator[Place]:
    port = free_ports(8)
    entry = {
        "transport": "embedded", "service": {"port": port, "canary_port": port + 2},
        "model": {"target": "/models/target", "draft": "/models/draft"},
    }  # fmt: skip
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": {"local": entry}}))
    try:
        with open_session(HostConfig.model_validate({"name": "local", **entry}), tmp_path) as session:
            package = embedded_home(tmp_path, "local") / "opt" / "lib" / "sglang"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text('__version__ = "0.5.20"\n')
            argv = (sys.executable, str(STUB), "--port", str(port), "--script", json.dumps(LINEAR))
            env = {"PYTHONPATH": str(package.parent)}
            session.services.install(ServiceUnit(session.unit, (*argv, "--speculative-algorithm", "DFLASH"), env))
            session.services.start(session.unit)
            answers(port)
            yield Place(tmp_path, port, session, capsys)
    finally:
        remove_embedded(tmp_path, "local")


def tree_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["arm"] == "tree"]


def test_a_server_of_somebodys_own_is_the_second_arm_and_goes_on(place: Place) -> None:
    """It speaks nothing but OpenAI's interface, so texts are compared, and its nodes are what the user says."""
    server = ("--tree-server", str(place.port + 1))
    service = place.session.services.status(place.session.unit).main_pid
    with place.by_hand(**FAST, openai_only=True) as pid:
        planned = place.call("plan", "bench", "--set", f"tree_server={place.port + 1}", "--set", "budgets=24")
        changes = {(c["target"], c["detail"]) for task in planned["tasks"] for c in task["changes"]}
        target = f"pid {pid} on port {place.port + 1}"
        said = "the server that was started by hand gets at most 1 requests at once; it is not stopped"
        assert (target, said) in changes
        found = place.call("bench", *server, "--budgets", "24", "--pairs", "10", *QUICK, "--yes")
        assert "does not say how many nodes" in place.call("bench", *server, *QUICK, "--yes", code=2)["error"]
    assert place.session.services.status(place.session.unit).main_pid == service
    assert (found["verdict"]["decision"], found["verdict"]["budget"]) == ("adopt", 24)
    rows = tree_rows(found)
    assert [row["findings"] for row in rows] == [[]] * len(rows)
    assert {row["lossless"] for row in rows} == {True}
    assert {request["received"] for row in rows for request in row["requests"]} == {None}
    assert {row["identity_before"].split()[1] for row in rows} == {str(pid)}


def test_the_same_rules_hold_for_it(place: Place) -> None:
    """Other text is not lossless, whatever its speed; SGLang's own interface is used where it is offered."""
    server = ("bench", "--tree-server", str(place.port + 1), "--pairs", "3", *QUICK, "--yes")
    with place.by_hand(**FAST, openai_only=True, salt="other"):
        other = place.call(*server, "--budgets", "24", code=8)
    assert {f["rule"] for row in tree_rows(other) for f in row["findings"]} == {"not-lossless"}
    with place.by_hand(**FAST, algorithm="DDTREE", nodes=32):
        assert "has 32 tree nodes, not 24" in place.call(*server, "--budgets", "24", code=2)["error"]
        native = place.call(*server, code=9)
    assert "only 3 of 10" in native["verdict"]["reason"]
    assert {row["budget"] for row in tree_rows(native)} == {32}
    assert all(request["verify_steps"] for row in tree_rows(native) for request in row["requests"])


def test_a_sweep_that_broke_off_goes_on_with_its_rows_unless_the_server_was_restarted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs end after their third row; only the first one is resumed while the same process serves."""
    settings = (f"tree_server={place.port + 1}", "budgets=24", "pairs=2", "max_tokens=32", "group_size=1")
    told = [word for setting in settings for word in ("--set", setting)]
    kept: list[Row] = []
    keep_row = benchmark._keep_row

    def breaks(ctx: Any, row: Row) -> None:
        keep_row(ctx, row)
        kept.append(row)
        if len(kept) in (3, 8):
            raise RuntimeError("this program broke off")

    monkeypatch.setattr(benchmark, "_keep_row", breaks)
    with place.by_hand(**FAST, openai_only=True):
        first = place.call("run", "bench", *told, "--yes", code=1)["run_id"]
        place.call("run", "bench", "--resume", first, *told, "--yes", code=9)
        fresh = (*told, "--set", "margin=0.03")
        second = place.call("run", "bench", *fresh, "--yes", code=1)["run_id"]
    with place.by_hand(**FAST, openai_only=True):
        refused = place.call("run", "bench", "--resume", second, *fresh, "--yes", code=1)
    assert "start a new run" in refused["error"]
    assert [row.pair for row in kept] == [0, 0, 1, 2, 2, 0, 0, 1]
    assert len({row.fingerprint for row in kept} - {""}) == 1


def test_what_cannot_be_the_arm_is_named(place: Place) -> None:
    def refused(server: str, code: int, *more: str) -> str:
        return str(place.call("bench", "--tree-server", server, *QUICK, *more, "--yes", code=code)["error"])

    assert "is the live service" in refused(str(place.port), 2)
    assert "Nothing that may be seen listens" in refused(str(place.port + 1), 1)
    assert "does not run on 'local'" in refused("nobody", 1)
    assert "through the host's connection" in refused(
        "1", 2, "--linear-url", "http://127.0.0.1:1", "--tree-url", "http://127.0.0.1:1"
    )
    with place.by_hand(algorithm="EAGLE", nodes=3):
        assert "serves EAGLE, and DDTREE is needed" in refused(str(place.port + 1), 2)


@pytest.mark.parametrize(
    ("secrets", "heard"), [({}, None), ({"tree_server_api_key": "env:OWN_KEY"}, "Bearer of-its-own")]
)
def test_it_is_told_its_own_key_and_never_the_services(
    place: Place, monkeypatch: pytest.MonkeyPatch, secrets: dict[str, str], heard: str | None
) -> None:
    keys: list[str | None] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization"))
            known = self.path == "/v1/models"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "theirs"}]}' if known else b"")

        def log_message(self, *_: Any) -> None: ...

    monkeypatch.setenv("SERVICE_KEY", "of-the-service")
    monkeypatch.setenv("OWN_KEY", "of-its-own")
    config = place.session.config.model_copy(update={"secrets": {"api_key": "env:SERVICE_KEY", **secrets}})
    with ThreadingHTTPServer(("127.0.0.1", place.port + 1), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = find_server(replace(place.session, config=config, resolved={}), str(place.port + 1))
        server.shutdown()
    assert found.model == "theirs"
    assert set(keys) == {heard}
