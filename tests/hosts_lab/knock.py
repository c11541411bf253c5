"""Clients of a service until standard input ends: `python knock.py ADDRESS PORT FILE`, only the standard library.

One connects anew every few ms; others stream completions, each over a connection of its own. FILE gets {"tries",
"refused": [times], "refused_s", "requests", "cut": [what came instead of a whole answer]}.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

STREAMS, TOKENS, PAUSE_S = 4, 60, 0.005


class Clients:
    def __init__(self, address: str, port: int) -> None:
        self.address, self.port = address, port
        self.stop = threading.Event()
        self.tries, self.requests, self.refused_s = 0, 0, 0.0
        self.refused: list[float] = []
        self.cut: list[str] = []

    def connect(self) -> None:
        last = time.monotonic()
        while not self.stop.is_set():
            self.tries += 1
            with socket.socket() as attempt:
                attempt.settimeout(10)
                failed = attempt.connect_ex((self.address, self.port)) != 0
            now = time.monotonic()
            if failed:
                self.refused.append(time.time())
                self.refused_s += now - last
            last = now
            time.sleep(PAUSE_S)

    def stream(self) -> None:
        while not self.stop.is_set():
            self.requests += 1
            try:
                whole = self.ask()
            except (OSError, http.client.HTTPException) as error:
                self.cut.append(f"{type(error).__name__}: {error}")
                time.sleep(PAUSE_S)
                continue
            if not whole:
                self.cut.append("the stream ended early")

    def ask(self) -> bool:
        link = http.client.HTTPConnection(self.address, self.port, timeout=30)
        try:
            body = json.dumps({"prompt": "a", "max_tokens": TOKENS, "stream": True})
            link.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            return b"[DONE]" in link.getresponse().read()
        finally:
            link.close()

    def report(self) -> dict[str, Any]:
        return {
            "tries": self.tries, "refused": self.refused, "refused_s": self.refused_s,
            "requests": self.requests, "cut": self.cut,
        }  # fmt: skip


def main(address: str, port: int, path: Path) -> None:
    clients = Clients(address, port)
    threads = [threading.Thread(target=work) for work in (clients.connect, *(clients.stream for _ in range(STREAMS)))]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    clients.stop.set()
    for thread in threads:
        thread.join()
    path.write_text(json.dumps(clients.report()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
