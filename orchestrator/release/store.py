"""The releases on one host: list, read, current, known-good, prune."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.release.layout import RELEASE_ID, Layout
from orchestrator.release.manifest import Manifest, TreeDigest
from orchestrator.remote.script import run_script
from orchestrator.transport.base import Transport

# The part's name is this call's own ($$ is its shell's): the host itself may set the same link meanwhile.
LINK = 'ln -sfn "$1" "$2.orchestrate-part-$$" && mv -fT "$2.orchestrate-part-$$" "$2"'


@dataclass(frozen=True)
class KnownGood:
    """A release that was proven, when, and by what. `evidence` is a JSON object."""

    release: str
    verified_at: str
    evidence: Mapping[str, Any]
    run_id: str = ""


@dataclass
class ReleaseStore:
    """Releases below `layout.root`. `privileged`: root owns the folder, so sudo is used for writing and for pip."""

    transport: Transport
    layout: Layout
    privileged: bool = False
    _read: dict[str, Manifest] = field(default_factory=dict, repr=False, compare=False)

    def prepare(self) -> None:
        """Make the folders; a second call changes nothing."""
        self.sh('mkdir -p "$1" "$2"', self.layout.releases, self.layout.deadman)

    def ids(self) -> list[str]:
        """Complete releases: those with a manifest, oldest first."""
        script = 'cd "$1" 2>/dev/null || exit 0; ls -1tr */manifest.json 2>/dev/null; exit 0'
        found = self.sh(script, self.layout.releases).splitlines()
        return [name for name in (posixpath.dirname(line) for line in found) if RELEASE_ID.match(name)]

    def read(self, release_id: str) -> Manifest:
        """The manifest of a release, which never changes once it is written and is therefore read once."""
        if release_id not in self._read:
            self._read[release_id] = self._manifest(release_id)
        return self._read[release_id]

    def _manifest(self, release_id: str) -> Manifest:
        try:
            data = self.transport.get_bytes(self.layout.manifest(release_id), sudo=self.privileged)
        except FileNotFoundError as error:
            raise UsageError(
                f"host {self.transport.host!r} has no release {release_id}; `orchestrate releases` lists what it has."
            ) from error
        try:
            return Manifest.model_validate_json(data)
        except ValidationError as error:
            raise OrchestrateError(
                f"the manifest of release {release_id} on host {self.transport.host!r} is damaged "
                f"({error.errors()[0]['msg']}); remove that release and build it again."
            ) from error

    def exists(self, release_id: str) -> bool:
        return release_id in self.ids()

    def write(self, manifest: Manifest) -> None:
        """Makes the release complete: it counts from here on."""
        self.sh('mkdir -p "$1"', self.layout.release(manifest.id))
        # Its commands may hold a key that somebody wrote into the unit.
        self.put(manifest.model_dump_json(indent=2) + "\n", self.layout.manifest(manifest.id), mode=0o600)

    def current(self) -> str | None:
        """The release that `current` points to."""
        target = self.sh('readlink "$1" || true', self.layout.current).strip()
        name = posixpath.basename(target)
        return name if RELEASE_ID.match(name) else None

    def point_current(self, release_id: str) -> None:
        if not self.exists(release_id):
            raise UsageError(f"release {release_id} on host {self.transport.host!r} is not complete; build it first.")
        self.sh(LINK, posixpath.join("releases", release_id), self.layout.current)

    def currents(self) -> set[str]:
        """The current release of every replica of this host."""
        script = 'for l in "$1"/current "$1"/current-*; do readlink "$l"; done 2>/dev/null; exit 0'
        return {posixpath.basename(line) for line in self.sh(script, self.layout.root).splitlines()}

    def prefix(self, manifest: Manifest) -> str:
        """The environment that a release serves from: its clone, or the one that was found."""
        clone = manifest.venv_release
        return self.layout.venv(clone) if clone else manifest.environment.prefix

    def known_good(self) -> list[KnownGood]:
        """Proven releases that still exist, newest proof first."""
        try:
            rows = json.loads(self.transport.get_bytes(self.layout.known_good, sudo=self.privileged))["releases"]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise OrchestrateError(
                f"{self.layout.known_good} on host {self.transport.host!r} is damaged; move it away and prove the "
                "linear "
                "service again."
            ) from error
        present = set(self.ids())
        found = [KnownGood(**row) for row in rows if row["release"] in present]
        return sorted(found, key=lambda one: one.verified_at, reverse=True)

    def mark_known_good(self, release_id: str, evidence: Mapping[str, Any], run_id: str = "") -> KnownGood:
        """Record that a release was proven now; `evidence` must say by what."""
        if not evidence:
            raise OrchestrateError(f"release {release_id} cannot be called known-good without evidence.")
        if not self.exists(release_id):
            raise UsageError(f"release {release_id} on host {self.transport.host!r} does not exist.")
        new = KnownGood(release_id, datetime.now(UTC).isoformat(timespec="seconds"), dict(evidence), run_id)
        rows = [new, *(one for one in self.known_good() if one.release != release_id)]
        document = {"releases": [vars(one) | {"evidence": dict(one.evidence)} for one in rows]}
        self.put(json.dumps(document, indent=2) + "\n", self.layout.known_good)
        return new

    def forget_known_good(self, release_id: str) -> None:
        """A release that turned out bad is no target for a rollback any more."""
        rows = [one for one in self.known_good() if one.release != release_id]
        self.put(json.dumps({"releases": [vars(one) for one in rows]}, indent=2) + "\n", self.layout.known_good)

    def discard(self, release_id: str) -> None:
        """Delete one release (complete or not) that is neither current nor the only known-good one."""
        if release_id in self.currents():
            raise UsageError(f"release {release_id} is current; switch to another one before it is removed.")
        folder = self.layout.release(release_id)
        self._read.pop(release_id, None)
        # The manifest goes first, so that a half-deleted release never counts.
        self.sh('rm -f "$1/manifest.json" && rm -rf "$1"', folder, timeout_s=600)

    def prune(self, keep: int = 2) -> list[str]:
        """Delete old releases; current ones, two known-good ones of each unit and the newest `keep` built ones stay.

        So does what these were made from: the release as found, and the clone that they start from.
        """
        names = self.ids()
        manifests = {name: self.read(name) for name in names}
        keepers: set[str | None] = set(self.currents())
        good: dict[str, list[str]] = {}
        for one in self.known_good():
            good.setdefault(manifests[one.release].unit, []).append(one.release)
        keepers |= {name for proven in good.values() for name in proven[:2]}
        keepers |= set([name for name in names if manifests[name].kind != "found"][-keep:] if keep else [])
        keepers |= {manifests[name].venv_of for name in keepers if name in manifests}
        keepers |= {manifests[name].source_release for name in keepers if name in manifests}
        gone = [name for name in names if name not in keepers]
        for name in gone:
            self.discard(name)
        return gone + self._remove_incomplete()

    def _remove_incomplete(self) -> list[str]:
        script = (
            'cd "$1" 2>/dev/null || exit 0; for d in */; do [ -e "$d/manifest.json" ] || echo "${d%/}"; done; exit 0'
        )
        names = [name for name in self.sh(script, self.layout.releases).split() if RELEASE_ID.match(name)]
        for name in names:
            self.discard(name)
        return names

    def tree_digest(self, path: str, *, skip_bytecode: bool = False) -> TreeDigest:
        """Digest of a folder on the host, made there; equal only when every byte, mode and link is."""
        facts = run_script(
            self.transport,
            "treefacts",
            {"path": path, "skip_bytecode": skip_bytecode},
            sudo=self.privileged,
            timeout_s=1800,
        )
        return TreeDigest(**facts)

    def put(self, text: str, path: str, *, mode: int = 0o644) -> None:
        self.transport.put_bytes(text.encode(), path, mode=mode, sudo=self.privileged)

    def sh(self, script: str, *arguments: str, timeout_s: float = 60) -> str:
        """Run a small shell script below the root; returns its stdout."""
        done = self.transport.run(
            ["/bin/sh", "-c", script, "sh", *arguments], sudo=self.privileged, check=True, timeout_s=timeout_s
        )
        return done.stdout
