"""Ports for the services that tests start."""

from __future__ import annotations

import random
import socket


def free_ports(count: int = 1) -> int:
    """The first of `count` neighbouring loopback ports that are all free.

    Any of many: they are used minutes later, and other tests of this machine look for ports meanwhile. Below those that
    the kernel gives to whoever connects, and below the one that hosts.yaml names.
    """
    for first in random.SystemRandom().sample(range(20000, 29900 - count), 100):
        try:
            holders = [socket.create_server(("127.0.0.1", first + offset)) for offset in range(count)]
        except OSError:
            continue
        for holder in holders:
            holder.close()
        return first
    raise RuntimeError("no run of free ports")
