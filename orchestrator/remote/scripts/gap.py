"""How long a port refuses connections: {"port", "file", "limit_s"}. Connects anew every few ms until it is stopped.

FILE holds {"refused_s", "tries"}, written anew at each change and twice a second.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

PAUSE_S = 0.02
WRITE_S = 0.5


def is_open(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.settimeout(5)
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def write(path: str, refused_s: float, tries: int) -> None:
    with open(path + ".part", "w", encoding="ascii") as file:
        json.dump({"refused_s": round(refused_s, 3), "tries": tries}, file)
    os.replace(path + ".part", path)


def main() -> None:
    wish = json.loads(sys.argv[1])
    os.makedirs(os.path.dirname(wish["file"]), exist_ok=True)
    begun = last = written = time.monotonic()
    refused_s, tries, was_open = 0.0, 0, False
    while last - begun < wish["limit_s"]:
        now_open = is_open(wish["port"])
        now, tries = time.monotonic(), tries + 1
        if not now_open:
            refused_s += now - last
        if tries == 1 or now_open != was_open or now - written > WRITE_S:
            write(wish["file"], refused_s, tries)
            written = now
        last, was_open = now, now_open
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
