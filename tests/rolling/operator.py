"""An operator to be lost: `python -m tests.rolling.operator HOME CONFIG NUMBER` takes a replica out of its router.

CONFIG is the host's as JSON. Says `drains` on stdout once it waits for the replica's requests, and `out` when none runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.hosts import rotation
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import open_session


def waiting(text: str, _waited: float, _limit: float) -> None:
    if "requests still run" in text:
        print("drains", flush=True)


def main(home: str, config: str, number: str) -> None:
    with open_session(HostConfig.model_validate_json(config), Path(home)) as session:
        rotation.take_out(session.replicas()[int(number)], waiting)
        print("out", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
