"""Secrets of every kind of reference, on a real host: they reach the service, and nothing that anybody reads."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.hosts import secrets
from orchestrator.hosts.session import HostSession
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport.base import CommandFailed

CANARIES = {"env": "canary-of-env-11f0", "file": "canary-of-file-22e1", "cmd": "canary-of-cmd-33d2"}


@pytest.fixture
def references(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("CANARY", CANARIES["env"])
    folder = tmp_path_factory.mktemp("secrets")
    for kind in ("file", "cmd"):
        (folder / kind).write_text(CANARIES[kind] + "\n")
    return {"one": "env:CANARY", "two": f"file:{folder}/file", "three": f"cmd:cat {folder}/cmd"}


def command_lines() -> bytes:
    """Of every process of this machine, which is the host too."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            found += path.read_bytes()
    return found


def test_a_canary_of_every_kind_reaches_the_service_and_nothing_else(
    references: dict[str, str], session: HostSession, tmp_path: Path
) -> None:
    session.config = session.config.model_copy(update={"secrets": references})
    values = session.secret_env()
    assert values == {"ONE": CANARIES["env"], "TWO": CANARIES["file"], "THREE": CANARIES["cmd"]}
    session.services.install(ServiceUnit("secret", ("sleep", "3600"), secret_env=values))
    session.services.start("secret")
    environ = Path(f"/proc/{session.services.status('secret').main_pid}/environ").read_bytes()
    said = "; ".join(CANARIES.values())
    with pytest.raises(CommandFailed) as failed:
        session.transport.run(["sh", "-c", "echo $ONE $TWO $THREE >&2; exit 3"], env=values, check=True)
    words = command_lines()
    holders = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    for canary in CANARIES.values():
        assert canary.encode() in environ
        assert canary not in session.masker.mask(f"log line: {said}")
        assert canary not in session.masker.mask(str(failed.value))
        assert canary.encode() not in words
        assert {path.name for path in holders if canary.encode() in path.read_bytes()} == {"secret.json"}
        assert canary not in repr(session.config)


def test_keys_of_other_servers_are_none_of_the_service(session: HostSession) -> None:
    """A missing one hinders nothing that does not ask for it."""
    others = {"TREE_SERVER_API_KEY": "env:NOT_SET_ANYWHERE", "router_api_key": "env:NOT_SET_EITHER"}
    session.config = session.config.model_copy(update={"secrets": others})
    assert session.secret_env() == {}
    with pytest.raises(UsageError, match="NOT_SET_ANYWHERE"):
        session.secret("tree_server_api_key")


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("env:NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE, which is not set"),
        ("file:/no/such/key", "/no/such/key cannot be read"),
        ("cmd:sh -c 'echo a-value-nobody-may-see >&2; exit 3'", "exit code 3 and no value"),
        ("cmd:true", "no value"),
        ("cmd:/no/such/program", "did not run"),
        ("a-value-nobody-may-see", "must be a reference"),
    ],
)
def test_what_gives_no_value_is_named_by_its_place(reference: str, word: str) -> None:
    with pytest.raises(UsageError) as refused:
        secrets.resolve(reference, what="hosts.h.secrets.key")
    assert str(refused.value).startswith("hosts.h.secrets.key")
    assert word in str(refused.value)
    assert "nobody-may-see" not in str(refused.value)
