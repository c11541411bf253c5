"""What tasks of one run share about a host."""

from __future__ import annotations

import threading

from orchestrator.recent import Recent


def test_a_value_is_made_once_until_it_is_old() -> None:
    now, made = [0.0], []
    recent = Recent(10.0, lambda: now[0])
    assert recent.known("look") is None
    assert recent.get("look", lambda: made.append(1) or "first") == "first"
    now[0] = 10.0
    assert recent.get("look", lambda: made.append(1) or "second") == "first"
    now[0] = 10.1
    assert recent.get("look", lambda: made.append(1) or "second") == "second"
    assert (recent.known("look"), len(made)) == ("second", 2)


def test_a_failure_is_not_kept_and_a_second_asker_waits_for_the_first() -> None:
    recent, entered, go = Recent(), threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert go.wait(10)
        return "made"

    def failing() -> str:
        raise OSError("unreachable")

    try:
        recent.get("look", failing)
    except OSError:
        assert recent.known("look") is None
    first = threading.Thread(target=lambda: recent.get("look", slow))
    first.start()
    assert entered.wait(10)
    found: list[str] = []
    second = threading.Thread(target=lambda: found.append(recent.get("look", lambda: "made again")))
    second.start()
    go.set()
    first.join(10)
    second.join(10)
    assert found == ["made"]
