"""The list of what a GPU still has to run: every command can be given, and a short lease loses little."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest
from sglang_ddtree.bench import kernels, outstanding
from sglang_ddtree.bench.campaign_plan import ENGINE
from sglang_ddtree.bench.outstanding import ITEMS, Item, chosen, listing, main, run_all, run_item

MODELS = ENGINE / "models"


def test_everything_but_the_last_fits_a_lease_and_each_fits_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(item.minutes for item in ITEMS) <= 28
    assert max(item.minutes * outstanding.SLACK for item in ITEMS) < 10
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == [item.name for item in ITEMS]
    assert f"{sum(item.minutes for item in ITEMS):.1f} in all" in shown[-1]


@pytest.mark.parametrize("item", ITEMS, ids=[item.name for item in ITEMS])
def test_a_command_names_a_module_and_its_options(item: Item) -> None:
    module = item.command[1]
    spec = importlib.util.find_spec(f"{module}.__main__" if module == "sglang_ddtree" else module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    for option in (part for part in item.command[2:] if part.startswith("--")):
        assert f'"{option}"' in source, option
    assert any("{result}" in part for part in item.command)


def test_the_ops_of_the_benches_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [op for op, _, _ in kernels._measurements()]
    asked = ["step_ops", "tree_attention"]
    assert set(asked) <= set(known)
    monkeypatch.setattr(kernels, "copy_bandwidth", lambda: 1.0)
    monkeypatch.setattr(kernels, "_guard", lambda op, measure, **what: iter([{"op": op, **what}]))
    rows = list(kernels.rows(asked))
    assert [row["op"] for row in rows] == ["copy", *(op for op in known if op in asked)]
    assert len(list(kernels.rows())) == 1 + len(known)


def test_names_choose_and_an_unknown_one_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert [item.name for item in chosen("oracle,selftest")] == ["selftest", "oracle"]
    assert len(listing(chosen("oracle"))) == 1
    assert main(["--only", "oracel"]) == 2
    assert "No item is called oracel: known are selftest" in capsys.readouterr().err


def python(name: str, code: str, minutes: float = 1.0) -> Item:
    return Item(name, minutes, ("-c", code, "{result}", "{models}"), "")


def test_an_item_finds_the_packages_beside_the_models_and_others_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    convert = "import sys, pathlib, models.convert, baselines; pathlib.Path(sys.argv[1]).write_text('found')"
    items = [python("packages", convert), python("fails", "raise SystemExit(3)"), python("long", "", 99.0)]
    rows = run_all(items, MODELS, tmp_path, 300)
    assert [row.get("exit") for row in rows] == [0, 3, None]
    assert (tmp_path / "packages.json").read_text() == "found"
    assert json.loads((tmp_path / "outstanding.json").read_text())["rows"] == rows
    assert "were left" in str(rows[2]["not_run"])


def test_an_item_that_takes_too_long_is_asked_to_end_and_what_it_wrote_stays(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path(sys.argv[1]).write_text('ended')))\n"
        "while True: time.sleep(60)"
    )
    before = signal.getsignal(signal.SIGTERM)
    assert run_item(python("slow", code), MODELS, tmp_path, 3.0) == 124
    assert (tmp_path / "slow.json").read_text() == "ended"
    assert signal.getsignal(signal.SIGTERM) == before
    assert os.environ.get("OUT", "") != str(tmp_path)
