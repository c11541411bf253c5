"""The host's own guard of a replica that is out of its router, run as the host runs it, with a router that only listens."""

from __future__ import annotations

import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.remote import scripts

SCRIPT = Path(scripts.__file__).with_name("rejoin.py")
PATIENCE_S = 40.0


@dataclass
class Heard:
    """What the router was told, and whether it takes it."""

    wishes: list[tuple[str | None, Any]] = field(default_factory=list)
    status: int = 202


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        heard: Heard = self.server.heard  # type: ignore[attr-defined]
        wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        heard.wishes.append((self.headers.get("Authorization"), wish))
        self.send_response(heard.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@dataclass
class Scene:
    """A router, a service (both the same server: whatever listens is a service that answers), and the guard's folder."""

    folder: Path
    port: int
    heard: Heard
    service: subprocess.Popen[bytes]

    @property
    def deadman(self) -> Path:
        return self.folder / "deadman"

    def arm(self, **more: Any) -> None:
        plan = {
            "token": "t1", "seconds": 1, "grace_s": 0, "api": f"http://127.0.0.1:{self.port}/workers",
            "headers": {"Authorization": "Bearer router-key"}, "wish": {"url": "http://w:1", "api_key": "replica-key"},
            "port": self.port, "pid": self.service.pid, "deadman": str(self.deadman),
        }  # fmt: skip
        self.call("arm", stdin=json.dumps({**plan, **more}))

    def call(self, verb: str, *more: str, stdin: str = "") -> dict[str, Any]:
        command = [sys.executable, str(SCRIPT), verb, str(self.folder / "guard"), *more]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        return dict(json.loads(done.stdout))

    @contextlib.contextmanager
    def waiting(self, token: str = "t1") -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, str(SCRIPT), "wait", str(self.folder / "guard"), token]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=PATIENCE_S)
    return dict(json.loads(said))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.05)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
        subprocess.Popen(["sleep", "600"]) as service,
    ):
        heard = Heard()
        server.heard = heard  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "deadman").mkdir()
        yield Scene(tmp_path, server.server_port, heard, service)
        service.kill()
        server.shutdown()


def test_silence_brings_the_same_process_back_with_the_keys_and_leaves_none(scene: Scene) -> None:
    scene.arm()
    plan = scene.folder / "guard" / "away.json"
    assert plan.stat().st_mode & 0o777 == 0o600
    with scene.waiting() as process:
        said = answer(process)
    assert said["state"] == "back", said
    assert scene.heard.wishes == [("Bearer router-key", {"url": "http://w:1", "api_key": "replica-key"})]
    assert [file.name for file in plan.parent.iterdir() if "-key" in file.read_text()] == []
    assert scene.call("beat", "t1")["state"] == "back"


def test_a_service_that_was_stopped_stays_out(scene: Scene) -> None:
    scene.arm()
    scene.service.kill()
    scene.service.wait()
    with scene.waiting() as process:
        said = answer(process)
    assert (said["state"], said["why"]) == ("left", "the service was stopped meanwhile")
    assert scene.heard.wishes == []


def test_an_operator_that_is_heard_of_keeps_it_out_and_ends_it(scene: Scene) -> None:
    scene.arm(seconds=3)
    with scene.waiting() as process:
        end = time.monotonic() + 6  # twice the time of silence
        while time.monotonic() < end:
            assert scene.call("beat", "t1")["state"] == "armed"
        assert process.poll() is None
        scene.call("drop")
        assert answer(process)["state"] == "dropped"
    assert scene.heard.wishes == []


def test_a_guard_that_is_armed_anew_ends_the_one_before(scene: Scene) -> None:
    scene.arm(seconds=600)
    with scene.waiting() as process:
        scene.arm(seconds=600, token="t2")
        assert answer(process)["state"] == "dropped"
    assert scene.call("beat", "t2")["state"] == "armed"


def test_an_armed_switch_comes_first_and_what_it_settled_gets_requests(scene: Scene) -> None:
    scene.arm()
    (scene.deadman / "armed.json").write_text("{}")
    with scene.waiting() as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=3)  # three times the time of silence
        scene.service.kill()  # another release runs by now
        scene.service.wait()
        (scene.deadman / "outcome.json").write_text(json.dumps({"state": "disarmed", "token": "s1"}))
        (scene.deadman / "armed.json").unlink()
        assert answer(process)["state"] == "back"
    assert len(scene.heard.wishes) == 1


@pytest.mark.parametrize(
    ("state", "why"), [("failed", "could not be brought back"), ("fired", "does not answer")], ids=["failed", "down"]
)
def test_what_does_not_serve_after_a_switch_stays_out(scene: Scene, state: str, why: str) -> None:
    scene.arm(port=1)  # nobody listens there
    (scene.deadman / "outcome.json").write_text(json.dumps({"state": state, "token": "s1"}))
    with scene.waiting() as process:
        said = answer(process)
    assert said["state"] == "left"
    assert why in said["why"]
    assert scene.heard.wishes == []


def test_a_router_that_refuses_is_asked_again(scene: Scene) -> None:
    scene.arm(grace_s=600)
    scene.heard.status = 503
    with scene.waiting() as process:
        until(lambda: len(scene.heard.wishes) > 1)
        scene.heard.status = 202
        assert answer(process)["state"] == "back"
