"""What tests of whole sweeps share."""

from __future__ import annotations

import pytest

from orchestrator.bench import arm


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests hold up this process too: how late it runs says nothing about the sweep."""
    monkeypatch.setattr(arm, "DELAY_LIMIT_S", 5.0)
    monkeypatch.setattr(arm, "CPU_DELAY_LIMIT_S", 5.0)
