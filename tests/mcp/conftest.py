"""A folder with an inventory, an own graph that changes files instead of a host, and real servers on stdio."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.tui.demosite import ROOT, install_demo_graph

SECRET = "correct-horse-battery"
HOSTS = """\
hosts:
  files: {address: 127.0.0.1, port: 9, user: ada, model: {target: /m, draft: /d}, secrets: {api_key: "env:DEMO_KEY"}}
  other: {address: 127.0.0.1, port: 9, user: ada, model: {target: /m, draft: /d}}
"""


@dataclass
class Place:
    folder: Path

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def hosts_file(self) -> Path:
        return self.folder / "hosts.yaml"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder / 'state.db'}"

    @property
    def settings(self) -> dict[str, str]:
        return {"folder": str(self.files)}

    def parameters(self, *more: str) -> StdioServerParameters:
        command = ["-m", "orchestrator", "mcp", "--hosts", str(self.hosts_file), *more]
        path = f"{self.folder / 'site'}:{ROOT}"
        return StdioServerParameters(
            command=sys.executable, args=command, env={"PYTHONPATH": path, "DEMO_KEY": SECRET}, cwd=self.folder
        )

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        async with Client(self.parameters()) as client:
            yield Agent(client, self)


@dataclass
class Agent:
    """Calls tools of one server and checks that text and structured content are one document."""

    client: Client
    place: Place

    async def call(self, name: str, **given: Any) -> dict[str, Any]:
        result = await self.client.call_tool(name, given)
        document: dict[str, Any] = result.structured_content
        assert result.is_error is not document["ok"]
        if document["error"]:
            assert result.content[0].text == document["error"]
        return document

    async def refused(self, name: str, code: int, **given: Any) -> str:
        """The one sentence with which a call is refused, which has that exit code."""
        document = await self.call(name, **given)
        assert document["exit_code"] == code, document
        sentence: str = document["error"]
        assert "\n" not in sentence
        assert "Traceback" not in sentence
        return sentence

    async def planned(self, **given: Any) -> str:
        document = await self.call("plan", **{"graph": "demo", "settings": self.place.settings, **given})
        assert document["ok"], document
        plan_id: str = document["plan_id"]
        return plan_id


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    install_demo_graph(tmp_path, monkeypatch)
    made = Place(tmp_path)
    made.files.mkdir()
    made.hosts_file.write_text(HOSTS, encoding="utf-8")
    return made
