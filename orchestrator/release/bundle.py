"""An offline wheelhouse: what a host lacks, in parts of a given size with checksums, and how it is checked and opened.

`bundle.json` names the parts; put together they are a tar file of wheels. Nothing of it needs a registry any more.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError

INDEX = "bundle.json"
FORMAT = 1
PART = "wheels.tar.part{:03d}"
CHUNK = 1 << 20
WHEEL_NAME = re.compile(r"^(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)-.+\.whl$")


@dataclass(frozen=True)
class Entry:
    """A file of the bundle with its SHA-256 and size in bytes."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Bundle:
    """What bundle.json says. plugin: the file name of the DDTree plugin among the wheels; target: for which hosts."""

    folder: Path
    plugin: str
    target: dict[str, Any]
    wheels: tuple[Entry, ...]
    parts: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        wheels = [{**asdict(one), **_named(one.file)} for one in self.wheels]
        return {
            "plugin": self.plugin,
            "target": self.target,
            "wheels": wheels,
            "parts": [asdict(p) for p in self.parts],
        }


def write_bundle(folder: Path, wheels: Sequence[Path], plugin: Path, target: dict[str, Any], part_bytes: int) -> Bundle:
    """Write parts and index into an empty or missing folder; UsageError when something else is there."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name a new folder for the bundle.")
    if part_bytes < 1:
        raise UsageError("a part must have at least one byte.")
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted({*wheels, plugin}, key=lambda path: path.name)
    with tempfile.TemporaryDirectory(prefix="orchestrate-bundle-") as scratch:
        archive = Path(scratch) / "wheels.tar"
        with tarfile.open(archive, "w") as tar:
            for path in files:
                tar.add(path, path.name, filter=_plain)
        parts = tuple(_split(archive, folder, part_bytes))
    bundle = Bundle(folder, plugin.name, target, tuple(_entry(path) for path in files), parts)
    document = {"format": FORMAT, "created_at": datetime.now(UTC).isoformat(timespec="seconds"), **bundle.to_json()}
    (folder / INDEX).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return bundle


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same wheels give the same bytes on every machine."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime, info.mode = 0, 0o644
    return info


def _split(archive: Path, folder: Path, part_bytes: int) -> Iterator[Entry]:
    with archive.open("rb") as source:
        number = 0
        while True:
            path = folder / PART.format(number)
            left = part_bytes
            with path.open("wb") as part:
                while left and (data := source.read(min(CHUNK, left))):
                    part.write(data)
                    left -= len(data)
            if not path.stat().st_size:
                path.unlink()
                return
            yield _entry(path)
            number += 1


def read_bundle(folder: Path) -> Bundle:
    """The index of a bundle, unchecked; UsageError when the folder holds none."""
    try:
        data = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise UsageError(
                f"{folder / INDEX} has format {data['format']}, this program reads {FORMAT}; build it anew."
            )
        rows = {
            key: tuple(Entry(r["file"], r["sha256"], int(r["bytes"])) for r in data[key]) for key in ("wheels", "parts")
        }
        return Bundle(folder, str(data["plugin"]), dict(data["target"]), rows["wheels"], rows["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} holds no bundle ({type(error).__name__}: {error}); `orchestrate bundle build` makes one."
        ) from error


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Bundle, Path]]:
    """The bundle and a folder with its wheels during the block, every byte checked; OrchestrateError names what is bad."""
    bundle = read_bundle(folder)
    for part in bundle.parts:
        _check(folder / part.file, part)
    with tempfile.TemporaryDirectory(prefix="orchestrate-bundle-") as scratch:
        archive, wheels = Path(scratch) / "wheels.tar", Path(scratch) / "wheels"
        with archive.open("wb") as whole:
            for part in bundle.parts:
                with (folder / part.file).open("rb") as source:
                    shutil.copyfileobj(source, whole, CHUNK)
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(wheels, filter="data")
        except tarfile.TarError as error:
            raise OrchestrateError(
                f"the parts in {folder} are no wheelhouse ({error}); build the bundle anew."
            ) from error
        archive.unlink()
        for wheel in bundle.wheels:
            _check(wheels / wheel.file, wheel)
        if not (wheels / bundle.plugin).is_file():
            raise OrchestrateError(f"the bundle in {folder} lacks the plugin {bundle.plugin}; build it anew.")
        yield bundle, wheels


def _check(path: Path, wanted: Entry) -> None:
    if not path.is_file():
        raise OrchestrateError(f"{path.name} of the bundle is missing; copy it again.")
    found = _entry(path)
    if found.bytes != wanted.bytes:
        raise OrchestrateError(f"{path.name} of the bundle has {found.bytes} bytes, not {wanted.bytes}; copy it again.")
    if found.sha256 != wanted.sha256:
        raise OrchestrateError(f"{path.name} of the bundle is damaged (its SHA-256 differs); copy it again.")


def _entry(path: Path) -> Entry:
    with path.open("rb") as source:
        return Entry(path.name, hashlib.file_digest(source, "sha256").hexdigest(), path.stat().st_size)


def _named(file: str) -> dict[str, str]:
    match = WHEEL_NAME.match(file)
    return {} if match is None else {"name": match["name"].replace("_", "-").lower(), "version": match["version"]}
