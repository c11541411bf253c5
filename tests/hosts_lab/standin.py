"""A stand-in inference server for fault injection, where a real engine would cost minutes a case.

It runs on a test host as module `sglang.serve` of the serving environment: OpenAI completions (streamed or not), health,
and `/whoami`, which tells which release really serves and whether that release is complete.
"""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import os
import sys
from importlib import metadata
from typing import Any

TEXT = "the quick brown fox jumps over the lazy dog and keeps on running through the long night of tokens"
WORDS = TEXT.split()


def payload_digest() -> str | None:
    """Digest of the plugin's payload as it lies in this environment; None without the plugin."""
    spec = importlib.util.find_spec("lab_plugin")
    if spec is None or spec.origin is None:
        return None
    with open(os.path.join(os.path.dirname(spec.origin), "payload.bin"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def whoami() -> dict[str, Any]:
    try:
        plugin: str | None = metadata.version("lab-plugin")
    except metadata.PackageNotFoundError:
        plugin = None
    return {
        "argv": sys.argv[1:],
        "prefix": sys.prefix,
        "plugin": plugin,
        "payload": PAYLOAD,
        "pid": os.getpid(),
        "greeting": os.environ.get("GREETING"),
        "has_key": bool(os.environ.get("API_KEY")),
    }


class Handler(http.server.BaseHTTPRequestHandler):
    """Greedy text is a function of the prompt only, so that every release gives the same tokens."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        answers = {"/whoami": whoami(), "/health_generate": {}, "/v1/models": {"data": [{"id": "standin"}]}}
        self._json(answers.get(self.path, {}), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        wish = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        count = int(wish.get("max_tokens", 16))
        offset = sum(map(ord, str(wish.get("prompt", ""))))
        tokens = [WORDS[(offset + index) % len(WORDS)] + " " for index in range(count)]
        if not wish.get("stream"):
            self._json({"choices": [{"text": "".join(tokens), "index": 0, "finish_reason": "length"}]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for token in tokens:
            chunk = json.dumps({"choices": [{"text": token, "index": 0}]})
            self.wfile.write(f"data: {chunk}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        """Quiet: the journal of a test host is for the tests' own lines."""

    def _json(self, document: Any, status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"serving on {port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    PAYLOAD = payload_digest()
    main()
