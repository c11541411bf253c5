"""One module per supported SGLang line; nothing outside this package tests a version."""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata

from .base import Line

LINES = {"0.5.16": "v0516", "0.5.20": "v0520", "0.5.23": "v0523"}


class UnsupportedSGLang(ValueError):
    """The installed SGLang is none that this package was written for."""


def installed_version() -> str | None:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


@cache
def line() -> Line:
    """The adapter of the installed SGLang; UnsupportedSGLang with one sentence otherwise."""
    version = installed_version()
    known = ", ".join(LINES)
    if version is None:
        raise UnsupportedSGLang(f"sglang_ddtree found no sglang in this environment: install one of {known}.")
    if version not in LINES:
        from ..hooks import differences

        found = differences(nearest(version))
        detail = f"{len(found)} of the functions it overrides differ, first {found[0]}" if found else (
            "the functions it overrides look the same, but nothing was tested with it"
        )  # fmt: skip
        raise UnsupportedSGLang(f"sglang_ddtree supports sglang {known}, not {version}: {detail}.")
    return load(version)


def load(version: str) -> Line:
    """The adapter written for ``version``, a key of LINES."""
    return importlib.import_module(f".{LINES[version]}", __package__).LINE


def nearest(version: str) -> Line:
    """The adapter of the newest supported line that is not newer than ``version`` (the oldest if none is)."""

    def key(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".") if part.isdigit())

    older = [known for known in LINES if key(known) <= key(version)]
    return load(max(older, key=key) if older else min(LINES, key=key))
