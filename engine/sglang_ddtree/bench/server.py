"""One SGLang server as a child process, and the few HTTP calls the benchmarks make."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAUNCH = ("sglang.launch_server",)
COMMON = (
    "--host", "127.0.0.1", "--dtype", "bfloat16", "--sampling-backend", "pytorch", "--grammar-backend", "none",
    "--random-seed", "1", "--skip-server-warmup", "--disable-prefill-cuda-graph",
)  # fmt: skip
# The same program on a machine without a GPU: what differs, sglang_cpu fills in.
CPU_LAUNCH = ("sglang_cpu", "launch")
CPU_COMMON = ("--host", "127.0.0.1", "--random-seed", "1")


PLUGINS, PLUGIN = "sglang.srt.plugins", "sglang_ddtree"  # the entry points that SGLang loads, and ours
MISSING_PLUGIN = (
    "SGLang would not know DDTREE: the plug-in is not installed for {python}; install it there with "
    "`pip install --no-deps --no-build-isolation engine/sglang_ddtree`."
)


def leave_on_sigterm() -> None:
    """From now on an ended benchmark still ends its servers; for the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class Server:
    """Starts in its own process group, so that ``stop`` ends exactly what it started."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        port: int,
        log: Path,
        env: dict[str, str] | None = None,
        on_cpu: bool = False,
        module: str = "",
    ) -> None:
        """module: what to launch instead of SGLang's own launcher; SystemExit for a DDTREE arm without the plug-in."""
        if "DDTREE" in arguments and not importlib.metadata.entry_points(group=PLUGINS, name=PLUGIN):
            raise SystemExit(MISSING_PLUGIN.format(python=sys.executable))
        self.name, self.log, self.url = name, log, f"http://127.0.0.1:{port}"
        launch, common = (CPU_LAUNCH, CPU_COMMON) if on_cpu else (LAUNCH, COMMON)
        command = [sys.executable, "-m", *((module,) if module else launch), "--port", str(port), *common, *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | (env or {}),
        )

    def alive(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float) -> bool:
        """Whether the server answers within ``seconds``."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds and self.alive():
            try:
                self.get("/health", timeout=3)
                return True
            except (OSError, http.client.HTTPException):  # the latter too where a loopback connection met itself
                time.sleep(0.5)
        return False

    def get(self, path: str, timeout: float = 30) -> str:
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return str(answer.read().decode())

    def open(self, path: str, body: dict[str, Any], timeout: float = 120) -> Any:
        """The open response of a POST; closing it early is how a client goes away."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout)

    def post(self, path: str, body: dict[str, Any], timeout: float = 120) -> Any:
        with self.open(path, body, timeout) as answer:
            return json.loads(answer.read() or "null")

    def generate(self, ids: Any, tokens: int, **sampling: Any) -> Any:
        """One request (a list of ids) or a batch of them; greedy unless ``sampling`` says otherwise."""
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}
        return self.post("/generate", {"input_ids": ids, "sampling_params": parameters})

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(8)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
            return


def ddtree(draft: str, backend: str, width: int) -> list[str]:
    """Arguments of a DDTREE arm with ``width`` verify rows."""
    return ["--speculative-algorithm", "DDTREE", "--speculative-num-draft-tokens", str(width), *_draft(draft, backend)]


def linear(draft: str, backend: str) -> list[str]:
    return ["--speculative-algorithm", "DFLASH", *_draft(draft, backend)]


def _draft(draft: str, backend: str) -> list[str]:
    return ["--speculative-draft-model-path", draft, "--speculative-draft-attention-backend", backend]
