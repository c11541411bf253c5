"""A private PostgreSQL server in a temporary folder, run as an unprivileged user, gone after use.

python -m tests.store.postgres   runs the store's tests against it.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_ports

USERS = ("postgres", "nobody")


def binaries() -> Path | None:
    """The folder with initdb and postgres: on the PATH, or where Debian puts them."""
    found = [Path(path) for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    return found[0].resolve().parent if found else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yields the URL of the server's maintenance database."""
    folder = binaries()
    if folder is None:
        raise FileNotFoundError("no PostgreSQL server: apt-get install postgresql")
    home = Path(tempfile.mkdtemp(prefix="orchestrate-pg-"))
    account = _account()
    if account is not None:
        os.chown(home, account.pw_uid, account.pw_gid)
    data, port = home / "data", free_ports()
    try:
        _run(
            account,
            str(folder / "initdb"),
            "-D",
            str(data),
            "-A",
            "trust",
            "-U",
            "orchestrate",
            "-N",
            "--locale=C.UTF-8",
        )
        options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=60"
        control = str(folder / "pg_ctl")
        _run(account, control, "-D", str(data), "-w", "-l", str(home / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://orchestrate@127.0.0.1:{port}/postgres"
        finally:
            _run(account, control, "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def new_database(server_url: str) -> str:
    """A fresh empty database on the server; returns its URL."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server_url.rpartition('/')[0]}/{name}"


def _account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; another user runs it as themselves."""
    if os.geteuid() != 0:
        return None
    for user in USERS:
        try:
            return pwd.getpwnam(user)
        except KeyError:
            continue
    raise RuntimeError("root needs a user postgres or nobody to run PostgreSQL")


def _run(account: pwd.struct_passwd | None, *command: str) -> None:
    user = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, **user)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-500:]}{done.stderr[-500:]}")


if __name__ == "__main__":
    import pytest

    sys.exit(pytest.main(["tests/store", "-k", "postgres", *sys.argv[1:]]))
