"""The wheels in an environment of their own, and SGLang's real HTTP server started from them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import ENGINE, NEW_TOKENS, Engine, Pair

TOKEN = "a-token-of-the-tests"
PACKAGES = ("sglang_cpu", "sglang_ddtree")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, built offline; a build leaves nothing in the source tree."""
    folder = tmp_path_factory.mktemp("wheels")
    before = source_files()
    for package in PACKAGES:
        pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ENGINE / package))
    assert source_files() == before
    return {package: next(folder.glob(f"{package}-*.whl")) for package in PACKAGES}


@pytest.fixture(scope="module")
def installed_python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with both wheels installed, over the packages of the engine's environment."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site, "engine-environment.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip("install", "--no-deps", "--target", site, *map(str, wheels.values()))
    return python


def pip(*args: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", args[0], "-q", "--no-index", "--disable-pip-version-check", *args[1:]],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def source_files() -> set[str]:
    return {
        str(path) for package in PACKAGES for path in (ENGINE / package).rglob("*") if "__pycache__" not in path.parts
    }


def clean_environment() -> dict[str, str]:
    """This process's environment without what only the tests set."""
    drop = ("PYTHONPATH", "SGLANG_USE_CPU_ENGINE")
    env = {k: v for k, v in os.environ.items() if k not in drop and not k.startswith("SGLANG_DDTREE_")}
    if tree := os.environ.get("ENGINE_SGLANG_TREE"):
        env["PYTHONPATH"] = tree
    return env


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_every_module(package, wheels):
    sources = {f"{package}/{path.relative_to(ENGINE / package)}" for path in (ENGINE / package).rglob("*.py")}
    packed = {name for name in zipfile.ZipFile(wheels[package]).namelist() if name.endswith(".py")}
    assert packed == sources - {f"{package}/setup.py"}


def test_the_pth_file_activates_only_when_asked(installed_python):
    code = "import sys; print('PatchFinder' in [type(f).__name__ for f in sys.meta_path])"
    for value, expected in (("1", "True"), ("0", "False")):
        env = {**clean_environment(), "SGLANG_USE_CPU_ENGINE": value}
        done = subprocess.run([installed_python, "-c", code], capture_output=True, text=True, env=env)
        assert done.stdout.strip() == expected, done.stderr


def test_wheel_announces_the_plugin(installed_python):
    code = "from importlib.metadata import entry_points as e; print(*e(group='sglang.srt.plugins'))"
    done = subprocess.run([installed_python, "-c", code], capture_output=True, text=True, env=clean_environment())
    assert "sglang_ddtree.plugin:register" in done.stdout


class Server:
    """``python -m sglang_cpu launch`` on a free port."""

    def __init__(self, python: Path, pair: Pair, log: Path, *args: str, env: dict[str, str] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = log
        command = [
            str(python), "-m", "sglang_cpu", "launch", "--model-path", str(pair.target), "--host", "127.0.0.1",
            "--port", str(self.port), "--context-length", "512", *args,
        ]  # fmt: skip
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=clean_environment() | (env or {}),
                start_new_session=True,
            )  # fmt: skip

    def wait_until_ready(self, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.3)
        raise AssertionError(f"The server was not ready after {seconds} s: {self.log.read_text()[-3000:]}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def generate(self, prompt: list[int]) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        return self.post("/generate", {"input_ids": prompt, "sampling_params": sampling})[1]

    def stop(self) -> None:
        import signal

        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=15)


@pytest.fixture(scope="module")
def server(installed_python: Path, hybrid: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(
        installed_python, hybrid, tmp_path_factory.mktemp("server") / "log.txt", "--speculative-algorithm", "DDTREE",
        "--speculative-draft-model-path", str(hybrid.draft), "--speculative-num-draft-tokens", "16", "--enable-metrics",
        env={"SGLANG_DDTREE_WIDTHS": "chain,15", "SGLANG_DDTREE_CONTROL_TOKEN": TOKEN},
    )  # fmt: skip
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def test_http_answers_equal_plain_decoding(server, hybrid, engine):
    plain = [a.ids for a in Engine.start(hybrid).generate(hybrid.prompts[:4])]
    alone = [server.generate(prompt) for prompt in hybrid.prompts[:4]]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(server.generate, hybrid.prompts[:4]))
    for answers in (alone, together):
        assert [a["output_ids"][:NEW_TOKENS] for a in answers] == plain
        assert all(a["meta_info"]["spec_verify_ct"] > 0 for a in answers)


def test_server_names_the_algorithm(server):
    info = json.loads(server.get("/get_server_info"))
    assert info["speculative_algorithm"] == "DDTREE"
    assert info["speculative_num_draft_tokens"] == 16


def test_metrics_endpoint_publishes_the_counters(server, hybrid):
    server.generate(hybrid.prompts[0])
    values = dict(re.findall(r"^(ddtree_\w+?)(?:{.*?})? (\S+)$", server.get("/metrics"), re.MULTILINE))
    assert float(values["ddtree_nodes"]) == 15
    assert float(values["ddtree_accept_length"]) >= float(values["ddtree_accept_length_chain"]) >= 1
    assert {
        "ddtree_depth_hits",
        "ddtree_truncated",
        "ddtree_step_seconds_sum",
        "ddtree_step_seconds_count",
    } <= set(values)


def test_the_width_is_switched_from_the_servers_own_host(server, hybrid):
    def ask(body: dict[str, Any] | None = None, token: str = TOKEN) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/ddtree/width", None if body is None else json.dumps(body).encode(),
            {"x-ddtree-token": token}, method="GET" if body is None else "PUT",
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["error"]

    status, before = ask()
    assert (status, before["width"], before["widths"]) == (200, "15", ["chain", "15"])
    assert ask({"width": "chain"})[1]["width"] == "chain"
    tree = server.generate(hybrid.prompts[1])
    after = ask()[1]["counts"]
    assert after["chain"]["steps"] == before["counts"]["chain"]["steps"] + tree["meta_info"]["spec_verify_ct"]
    assert after["15"] == before["counts"]["15"]
    assert ask({"width": 15})[1]["nodes"] == 15
    assert server.generate(hybrid.prompts[1])["output_ids"] == tree["output_ids"]
    assert ask({"width": "auto"})[1]["policy"] == "auto"
    assert ask({"width": "start"})[1]["policy"] == "15"
    for body, token, code, word in (
        ({"width": 15}, "another-token-of-16", 401, "token"), ({"width": 64}, TOKEN, 409, "hold"),
        ({"width": "wide"}, TOKEN, 400, "wide"), ({}, TOKEN, 400, "width"), (None, "", 401, "token"),
    ):  # fmt: skip
        status, sentence = ask(body, token)
        assert (status, word in sentence.lower()) == (code, True)


def test_openai_client_is_served(server):
    status, answer = server.post(
        "/v1/completions",
        {"model": "default", "prompt": "def f(x):\n    return ", "max_tokens": 12, "temperature": 0},
    )
    assert status == 200
    assert answer["usage"]["completion_tokens"] > 0


def test_a_json_schema_is_served(server):
    schema = {"enum": [{"ok": True}, {"ok": False}]}  # literals leave a small model no room for white space
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Say ok."}],
        "max_tokens": 60,
        "temperature": 0,
    }
    status, answer = server.post("/v1/chat/completions", {**body, "response_format": form})
    assert status == 200, answer
    assert json.loads(answer["choices"][0]["message"]["content"]) in schema["enum"]


def test_unsupported_requests_get_the_reason(server):
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}, "return_hidden_states": True}
    status, text = server.post("/generate", body)
    assert status == 400
    assert "hidden states" in text


def test_a_refused_argument_stops_the_start_with_one_sentence(installed_python, hybrid, tmp_path):
    running = Server(
        installed_python, hybrid, tmp_path / "log.txt", "--speculative-algorithm", "DDTREE",
        "--speculative-draft-model-path", str(hybrid.draft), "--speculative-num-draft-tokens", "8",
    )  # fmt: skip
    try:
        assert running.process.wait(timeout=600) != 0
    finally:
        if running.process.poll() is None:
            running.stop()
    assert "DDTREE needs 2 <= block <= --speculative-num-draft-tokens" in running.log.read_text()
