"""An embedded host of its own for the story: real SSH, real SGLang on CPU, real store; removed at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.transport.embedded import remove_embedded
from tests.ports import free_ports

ORCHESTRATE = Path(sys.executable).with_name("orchestrate")
QUICK = ("--set", "budgets=15", "--set", "pairs=1", "--set", "max_tokens=24", "--set", "group_size=1")


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; anything else there fails here."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["key"]: task for task in self.document["tasks"]}


@dataclass(frozen=True)
class Story:
    """A folder with its own hosts.yaml, store and embedded host."""

    home: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self, *arguments: str) -> list[str]:
        return [str(ORCHESTRATE), *arguments, "--hosts", str(self.home / "hosts.yaml")]

    def orchestrate(self, *arguments: str, timeout_s: float = 900) -> Result:
        done = subprocess.run(
            self.command(*arguments, "--json"), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def interrupt_at(self, task: str, *arguments: str, timeout_s: float = 600) -> Result:
        """Run, send Ctrl-C as soon as `task` is being worked on, and wait for the end."""
        process = self.start(*arguments)
        deadline = time.monotonic() + timeout_s
        while not self._works_on(task):
            assert process.poll() is None, process.communicate()[1][-2000:]
            assert time.monotonic() < deadline, f"{task} was never reached"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=timeout_s)
        return Result(process.returncode, stdout, stderr)

    def _works_on(self, task: str) -> bool:
        found = self.orchestrate("status")
        if found.code:
            return False
        states = {item["key"]: item["state"] for item in found.document["tasks"]}
        return states.get(task) == "in_progress"

    def server_info(self) -> dict[str, Any]:
        info: dict[str, Any] = httpx.get(f"{self.url}/server_info", timeout=60, trust_env=False).json()
        return info

    def generate(self, text: str = "def main():\n", tokens: int = 16) -> dict[str, Any]:
        body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
        answer: dict[str, Any] = httpx.post(f"{self.url}/generate", json=body, timeout=120, trust_env=False).json()
        return answer

    def environment(self) -> Path:
        return self.home / ".embedded" / "local" / "home" / "opt" / "sglang" / "venv"


INVENTORY = """\
hosts:
  local:
    transport: embedded
    engine: sglang-cpu
    model: tiny-hybrid
    service: {{driver: process, port: {port}, start_timeout_s: 600}}
"""


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    assert os.environ.get("ORCHESTRATE_ENGINE_BASE"), "run these through `python -m tools.run_tests e2e`"
    home = tmp_path_factory.mktemp("story")
    port = free_ports(6)
    (home / "hosts.yaml").write_text(INVENTORY.format(port=port))
    try:
        yield Story(home, port)
    finally:
        remove_embedded(home, "local")
