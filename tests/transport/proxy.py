"""A TCP proxy that can go silent or break, to stand between a client and a real SSH server."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Proxy:
    """Forwards one address; `silent` swallows everything while the sockets stay open, `cut` closes them."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.silent = threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._pairs.clear()

    def close(self) -> None:
        self._stop.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._pairs.append((client, server))
            threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select([client, server], [], [], 0.5)[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if not self.silent.is_set():
                        (server if source is client else client).sendall(data)
