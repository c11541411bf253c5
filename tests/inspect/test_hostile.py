"""Hosts that answer nonsense, hold the probe up, or print in between: one sentence or an inspection, never anything else."""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import socket
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.output import plain
from orchestrator.documents import encode
from orchestrator.transport.base import CommandResult
from tasks.inspecting import Scope, answers, inspect_host
from tasks.inspecting.host_side.imports import path_files
from tasks.inspecting.host_side.machine import server_info
from tasks.inspecting.probe import ProbeFailed, host_facts
from tasks.inspecting.render import text
from tests.inspect.conftest import LocalTransport, make_package
from tests.inspect.test_hardware import fixture
from tests.spoil import spoilt

PAIR = Path(__file__).resolve().parents[2] / "engine" / "models" / "tiny-hybrid"
PORT = 30000


class Told(LocalTransport):
    """A host that gives these answers, one after the other."""

    def __init__(self, *outputs: str) -> None:
        super().__init__()
        self.outputs = list(outputs)

    def run(self, argv: Sequence[str], **_: Any) -> CommandResult:  # type: ignore[override]
        return CommandResult(tuple(argv), 0, self.outputs.pop(0), "", 0.0)


class Listening(LocalTransport):
    """Keeps what the real host answers."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[str] = []

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        result = super().run(argv, **options)
        self.outputs.append(result.stdout)
        return result


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What the probe and the files of a sound host look like: real ones of this machine, with the GPUs of another."""
    scratch = tmp_path_factory.mktemp("sound")
    site, python = scratch / "site-packages", scratch / "bin" / "python"
    make_package(site, "0.5.20")
    ear = Listening()
    facts = host_facts(ear, {"roots": [str(scratch)], "skip": ["gpu"]})
    argv = [
        str(python),
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(PAIR / "target"),
        "--speculative-draft-model-path",
    ]
    process = {"pid": 7, "ppid": 1, "uid": 0, "unit": "sglang.service", "engine": "sglang", "role": "server"}
    package = {"path": str(site / "sglang"), "kind": "site-packages", "version": "0.5.20", "shadowed": []}
    imports = {"interpreter": str(python), "prefix": str(scratch), "venv": True, "packages": {"sglang": package}}
    server = {
        **process, "argv": [*argv, str(PAIR / "draft")], "exe": str(python), "cwd": "/", "env": {"HOME": "/root"},
        "ports": [PORT], "maps": [], "limits": facts["system"]["limits"],
        "python": {**imports, "distributions": {}, "plugins": []},
    }  # fmt: skip
    facts["processes"] = {"servers": [server], "others": [], "hidden": 0, "listening": [PORT]}
    facts["commands"] |= fixture("nvidia/rtx_pro_6000_x8")["commands"]
    facts["server_info"] = {"port": PORT, "data": {"max_running_requests": 4, "tp_size": 1}}
    inspect_host(Both(json.dumps(facts), ear), Scope("here", port=PORT))
    return facts, json.loads(ear.outputs[-1])


class Both(Told):
    """The first answer as given, the next from the real host."""

    def __init__(self, first: str, then: LocalTransport) -> None:
        super().__init__(first)
        self.then = then

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        return super().run(argv) if self.outputs else self.then.run(argv, **options)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_a_spoilt_answer_gives_an_inspection_or_one_sentence(told: tuple[Any, Any], seed: int) -> None:
    chance = random.Random(seed)
    facts, files = told
    if chance.random() < 0.5:
        facts = spoilt(facts, chance)
    else:
        name = chance.choice(["target", "draft", "sglang"])
        packed = json.loads(zlib.decompress(base64.b64decode(files["answers"][name]["packed"])))
        config = packed["texts"].get("config.json")
        if config and chance.random() < 0.7:
            packed["texts"]["config.json"] = json.dumps(spoilt(json.loads(config), chance))
        else:
            packed = spoilt(packed, chance)
        files = copy.deepcopy(files)
        files["answers"][name]["packed"] = base64.b64encode(zlib.compress(json.dumps(packed).encode())).decode()
    try:
        document = inspect_host(Told(json.dumps(facts), json.dumps(files)), Scope("here", port=PORT)).to_json()
    except ProbeFailed as error:
        assert "\n" not in str(error)
        return
    assert plain(text(document)).encode()
    assert encode(document).encode()


def test_what_unpacks_to_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_UNPACKED", 1 << 20)
    bomb = base64.b64encode(zlib.compress(b" " * (8 << 20))).decode()
    with pytest.raises(answers.Malformed, match="more than 1 MiB"):
        answers.unpacked(bomb)


def test_words_of_login_and_log_out_scripts_around_the_answer_do_no_harm(told: tuple[Any, Any]) -> None:
    noise = f"Welcome {{friend}}\n{{not this}}\n{json.dumps(told[0])}\nBye\n"
    assert host_facts(Told(noise), {})["processes"]["listening"] == [PORT]
    with pytest.raises(ProbeFailed, match="malformed"):
        host_facts(Told("Welcome\n"), {})


def test_pipes_where_files_should_be_and_names_that_are_no_text(transport: LocalTransport, tmp_path: Path) -> None:
    package = make_package(tmp_path, "0.5.20")
    (package / "_version.py").unlink()
    os.mkfifo(package / "_version.py")  # opening it to read would wait for ever
    odd = make_package(tmp_path / os.fsdecode(b"caf\xe9"), "0.5.16")
    facts = host_facts(transport, {"roots": [str(tmp_path)], "skip": ["gpu"]})
    copies = {found["path"]: found["version"] for found in facts["copies"]}
    found = {path: version for path, version in copies.items() if path.startswith(str(tmp_path))}
    assert found == {str(package): None, str(odd).encode("utf-8", "replace").decode(): "0.5.16"}


@pytest.mark.parametrize("mapping", ["{'sglang': ['a']}", "{'a'}", "{[]: 1}", "{" * 5000 + "}" * 5000, "{1: 2}"])
def test_an_editable_finder_that_is_no_map_of_folders(mapping: str, tmp_path: Path) -> None:
    (tmp_path / "__editable___x_finder.py").write_text(f"MAPPING = {mapping}\n")
    assert path_files(str(tmp_path)) == ([], {})


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:  # a byte at a time resets a socket's time-out
        connection.sendall(b"x")
        threading.Event().wait(0.05)


ANSWERS: dict[str, Callable[[socket.socket], object]] = {
    "another protocol": lambda c: c.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n"),
    "a redirect": lambda c: c.sendall(
        b"HTTP/1.1 302 Found\r\nlocation: http://192.0.2.1/\r\ncontent-length: 0\r\n\r\n"
    ),
    "half an answer": lambda c: c.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"tp_size": 1'),
    "a deep answer": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000),
    "a byte at a time": drip,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_service_that_answers_something_else_tells_nothing_in_time(answer: str) -> None:
    def serve() -> None:
        while True:
            try:
                with listener.accept()[0] as connection:
                    connection.recv(4096)
                    ANSWERS[answer](connection)
            except OSError:
                if listener.fileno() < 0:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        assert server_info(listener.getsockname()[1]) is None
        listener.shutdown(socket.SHUT_RDWR)
