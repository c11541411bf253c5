"""Builds the wheels of the engine packages on the operator's machine; hosts install them offline."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.wholefile import replacing

ENGINE = Path(__file__).resolve().parents[2] / "engine"
PLUGIN = "sglang_ddtree"
CPU_ENGINE = "sglang_cpu"
SETUPTOOLS_WITH_WHEEL = (70, 1)  # from here on setuptools builds wheels without the package `wheel`
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "build", "dist", "*.egg-info", "results")


def engine_folder() -> Path:
    """Where the engine's sources are: beside the orchestrator package in a checkout."""
    if not ENGINE.is_dir():
        raise UsageError(f"{ENGINE} does not exist; run orchestrate from a checkout, which holds the engine's sources.")
    return ENGINE


def source_hash(folder: Path) -> str:
    """SHA-256 over every source file's path and content; equal sources give an equal hash on every machine."""
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and "__pycache__" not in parts and not any(p.endswith(".egg-info") for p in parts):
            hasher.update("/".join(parts).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()


def build_plugin_wheel(out_dir: Path) -> Path:
    """The wheel of the DDTree plugin, built once per state of its sources."""
    return build_wheel(engine_folder() / PLUGIN, out_dir)


def build_cpu_engine_wheel(out_dir: Path) -> Path:
    """The wheel of the CPU engine, built once per state of its sources."""
    return build_wheel(engine_folder() / CPU_ENGINE, out_dir)


def build_wheel(source: Path, out_dir: Path) -> Path:
    """Build `source` into `out_dir/<name>-<hash>/` (reused when it exists) and return the wheel's path.

    The build runs on a copy, so nothing appears in the source folder. OrchestrateError carries the build's last line.
    """
    if not (source / "pyproject.toml").is_file():
        raise UsageError(f"{source} has no pyproject.toml; it is no package that can be built.")
    target = out_dir / f"{source.name}-{source_hash(source)[:16]}"
    existing = sorted(target.glob("*.whl"))
    if existing:
        return existing[0]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="orchestrate-wheel-") as scratch:
        copy = Path(scratch) / source.name
        shutil.copytree(source, copy, ignore=LEFT_OUT)
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", scratch, str(copy)]
        if _setuptools_suffices():
            command[4:4] = ["--no-build-isolation", "--no-index"]
        env = {**os.environ, "SOURCE_DATE_EPOCH": "1704067200", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        built = sorted(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or not built:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no output"]
            raise OrchestrateError(
                f"the wheel of {source} could not be built ({last[0]}); build it by hand to see more."
            )
        wheel = target / built[0].name
        with replacing(wheel) as part:
            shutil.move(built[0], part)
    return wheel


def _setuptools_suffices() -> bool:
    try:
        version = metadata.version("setuptools")
        metadata.version("pip")
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= SETUPTOOLS_WITH_WHEEL
