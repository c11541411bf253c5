"""A stand-in engine behind the real router: `standin.py --port N --speculative-algorithm NAME`, streams a token every few ms.

It does what rolling relies on: it says how many requests run, is not ready at once, and dies at once when told to stop,
so that a replica that was not drained shows as failed requests.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a host starts this file by its path

from tests.hosts_lab import standin as plain

TOKEN_S = 0.01
WARM_UP_S = float(os.environ.get("STANDIN_WARM_UP_S", "1"))


def argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Engine:
    def __init__(self) -> None:
        self.running = 0
        self.lock = threading.Lock()

    def add(self, number: int) -> None:
        with self.lock:
            self.running += number


ENGINE = Engine()
MODEL = "standin"


def greedy(text: str, count: int) -> dict[str, Any]:
    """Token ids that depend on the prompt only; `--wrong` makes an engine that answers otherwise."""
    first = sum(map(ord, text)) + ("--wrong" in sys.argv)
    steps = 0 if argument("--speculative-algorithm") == "NONE" else count // 2
    meta = {"completion_tokens": count, "prompt_tokens": len(text), "spec_verify_ct": steps}
    return {"text": "x" * count, "output_ids": [(first + number) % 1000 for number in range(count)], "meta_info": meta}


class Handler(plain.Handler):
    def do_GET(self) -> None:
        info = {"model_path": MODEL, "served_model_name": MODEL, "tp_size": 1, "dp_size": 1, "is_generation": True}
        answers: dict[str, Any] = {
            "/health": {}, "/health_generate": {}, "/model_info": info, "/get_model_info": info,
            "/server_info": info | {"speculative_algorithm": argument("--speculative-algorithm")},
            "/v1/models": {"object": "list", "data": [{"id": MODEL}]},
            "/v1/loads": {"loads": [{"num_running_reqs": ENGINE.running, "num_waiting_reqs": 0}]},
        }  # fmt: skip
        path = self.path.split("?")[0]
        self._json(answers.get(path, {}), 200 if path in answers else 404)

    def do_POST(self) -> None:
        wish = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/generate":
            self._json(greedy(str(wish.get("text")), int(wish["sampling_params"]["max_new_tokens"])))
            return
        if self.path != "/v1/completions":
            self._json({}, 404)
            return
        ENGINE.add(1)
        try:
            self._stream(int(wish.get("max_tokens", 16)))
        finally:
            ENGINE.add(-1)

    def _stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(count):
            time.sleep(TOKEN_S)
            self._event({"choices": [{"text": f"{number} ", "index": 0}]})
        self._event({"choices": [], "usage": {"completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: Any) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    time.sleep(WARM_UP_S)
    host = argument("--host") if "--host" in sys.argv else "127.0.0.1"
    Server((host, int(argument("--port"))), Handler).serve_forever()
