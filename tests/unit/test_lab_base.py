"""The base image of the test hosts is built once, however many ask for it at the same moment."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "hosts_lab" / "lab" / "rootfs-build.sh"
PATIENCE_S = 30.0


def build(folder: Path) -> subprocess.Popen[str]:
    """The script in a folder of its own, traced, with a tool in PATH that fails where it would have built."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "mmdebstrap").write_text("#!/bin/sh\nexit 1\n")
    (tools / "mmdebstrap").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "MIRROR": "file:/nowhere", "HOSTLAB": str(folder)}
    command = ["bash", "-x", str(SCRIPT)]
    env["HOSTLAB_BASE"] = str(folder / "base")
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def somebody_waits_for(lock: Path) -> bool:
    """By the kernel's own list of locks."""
    inode = f":{lock.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_whoever_waited_for_a_build_takes_it_instead_of_deleting_it(tmp_path: Path) -> None:
    lock, base = tmp_path / "base.lock", tmp_path / "base"
    trace = build(tmp_path).communicate(timeout=PATIENCE_S)[1]
    stamp = re.search(r"^\++ WANT='(.*)'$", trace, re.M)
    assert stamp, trace
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as the first builder does
        second = build(tmp_path)
        end = time.monotonic() + PATIENCE_S
        while not somebody_waits_for(lock):
            assert second.poll() is None, second.communicate()[1]
            assert time.monotonic() < end, "it never waited for the lock"
            time.sleep(0.05)
        base.mkdir()
        (base / ".hostlab-stamp").write_text(f"{stamp.group(1)}\n")
    said = second.communicate(timeout=PATIENCE_S)[0]
    assert (second.returncode, said.strip()) == (0, f"cached: {base}")
    assert base.is_dir()
