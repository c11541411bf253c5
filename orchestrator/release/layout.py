"""Where things lie below a host's root; pure path arithmetic."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from orchestrator.errors import UsageError

RELEASE_ID = re.compile(r"^[a-z][a-z0-9]*-[0-9a-f]{12}$")


@dataclass(frozen=True)
class Layout:
    """`root` is an absolute path on the host; nothing outside it is written but units and drop-ins.

    Releases are shared by the replicas of a host; which one is current, and the dead man's switch, are each replica's.
    """

    root: str
    replica: int = 0

    @property
    def suffix(self) -> str:
        """What tells the names of a replica from those of the first one."""
        return f"-{self.replica}" if self.replica else ""

    @property
    def releases(self) -> str:
        return posixpath.join(self.root, "releases")

    @property
    def current(self) -> str:
        return posixpath.join(self.root, f"current{self.suffix}")

    @property
    def known_good(self) -> str:
        return posixpath.join(self.root, "known-good.json")

    @property
    def deadman(self) -> str:
        return posixpath.join(self.root, f"deadman{self.suffix}")

    @property
    def rejoin(self) -> str:
        """What the host knows of a replica that is out of its router."""
        return posixpath.join(self.root, f"rejoin{self.suffix}")

    @property
    def lock(self) -> str:
        return posixpath.join(self.root, "lock.json")

    def release(self, release_id: str) -> str:
        if not RELEASE_ID.match(release_id):
            raise UsageError(f"{release_id!r} is no release; `orchestrate releases` lists them.")
        return posixpath.join(self.releases, release_id)

    def venv(self, release_id: str) -> str:
        return posixpath.join(self.release(release_id), "venv")

    def manifest(self, release_id: str) -> str:
        return posixpath.join(self.release(release_id), "manifest.json")
