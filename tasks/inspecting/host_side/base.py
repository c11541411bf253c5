"""Reading files, running commands side by side, and hiding secrets."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from typing import Any, Dict

KEY_VARIABLE = "ORCHESTRATE_KEY_OF_SERVICE"  # in the environment of this script, where hosts.yaml gives the key
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.I)
SECRET_FLAG = re.compile(r"^--?[\w-]*(api-?key|token|secret|password|credentials?)$", re.I)  # not "…-tokens"
SECRET_ASSIGNMENT = re.compile(r"(?im)\b(\w*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL)\w*)=(\"[^\"]*\"|'[^']*'|[^\s;}\"']+)")
SECRET_ARGUMENT = re.compile(r"(?i)(--?[\w-]*(?:api-?key|hf-token|secret|password))([= ]+)(\"[^\"]*\"|'[^']*'|\S+)")
MASK = "***"

Facts = Dict[str, Any]


def read(path: str, limit: int = 1 << 20) -> str | None:
    """Text of a file, or None if it can't be read."""
    data = read_bytes(path, limit)
    return None if data is None else data.decode("utf-8", "replace")


def read_bytes(path: str, limit: int) -> bytes | None:
    """The beginning of a file; None if it can't be read or is a pipe or device, which could hold us up for ever."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return file.read(limit) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):
        return None


def start_command(argv: list[str], seconds: float = 4.0) -> Facts:
    """Start a command; collect() gives its texts later, so that slow tools run side by side."""
    environment = dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", NO_COLOR="1")
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
    except OSError as error:
        return {"missing": str(error)}
    return {"process": process, "until": time.monotonic() + seconds}


def collect(started: Facts) -> Facts:
    """{exit, out, err} of a started command: 127 when it is not installed, 124 when it gave no answer in time."""
    if "process" not in started:
        return {"exit": 127, "out": "", "err": started["missing"]}
    process = started["process"]
    late = False
    try:
        out, err = process.communicate(timeout=max(0.05, started["until"] - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        late = True
    texts = {"out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}
    return {**texts, "exit": 124, "err": "no answer in time"} if late else {**texts, "exit": process.returncode}


def mask_argv(argv: list[str]) -> list[str]:
    """The command line with the values of secret options hidden."""
    masked = []
    hide = False
    for item in argv:
        flag, equals, _ = item.partition("=")
        if hide and not item.startswith("--"):
            masked.append(MASK)
            hide = False
            continue
        hide = bool(SECRET_FLAG.match(item))
        masked.append(flag + "=" + MASK if equals and SECRET_FLAG.match(flag) else item)
    return masked


def mask_text(text: str) -> str:
    """Hide NAME=value pairs and values of secret options in unit files and systemctl output."""
    return SECRET_ARGUMENT.sub(r"\1\2" + MASK, SECRET_ASSIGNMENT.sub(r"\1=" + MASK, text))
