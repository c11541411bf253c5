"""What a release consists of; stored beside it on the host as manifest.json, which is written last."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.release.launch import Launch


class FileEntry(BaseModel):
    """A file or link that differs from the source environment; paths are relative to the environment."""

    model_config = ConfigDict(frozen=True)

    path: str
    sha256: str | None = None
    bytes: int | None = None
    link: str | None = None


class TreeDigest(BaseModel):
    """SHA-256 over all paths, modes, links and contents of a folder."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    files: int
    bytes: int


class EnvironmentFacts(BaseModel):
    """The Python environment that the service imported from when it was looked at."""

    model_config = ConfigDict(frozen=True)

    python: str
    prefix: str
    base_prefix: str
    python_version: str
    kind: str
    package_path: str
    package_version: str | None
    package_kind: str
    packages: str = ""


class Manifest(BaseModel):
    """A release. kind `found`: the service as it was, nothing copied. `ddtree`: a clone with a wheel in it.

    `dflash`: the environment as found, started as linear DFLASH; nothing is copied either. venv_of: the release whose
    clone this one starts with another command (another budget, another replica); None for a clone of its own.
    overrides: the upstream functions that the plugin replaces, as the plugin itself lists them.
    texts: unit and drop-in texts by path at the time it was found.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    kind: Literal["found", "ddtree", "dflash"]
    host: str
    unit: str
    created_at: str
    run_id: str = ""
    launch: Launch
    environment: EnvironmentFacts
    texts: dict[str, str] = {}
    source_release: str | None = None
    venv_of: str | None = None
    source_digest: TreeDigest | None = None
    clone_mode: Literal["link", "copy"] | None = None
    outside: tuple[str, ...] = ()
    wheel: FileEntry | None = None
    added: tuple[FileEntry, ...] = ()
    changed: tuple[FileEntry, ...] = ()
    removed: tuple[str, ...] = ()
    overrides: tuple[Any, ...] = ()

    @property
    def venv_release(self) -> str | None:
        """The release that holds the clone; None where the environment is the one that was found."""
        return self.venv_of or (self.id if self.kind == "ddtree" else None)
