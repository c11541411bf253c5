"""The self-test passes here and notices a broken op."""

from __future__ import annotations

import json

import pytest
import torch
from sglang_ddtree import ops, selftest


def test_every_op_is_checked_and_passes(tmp_path, capsys):
    file = tmp_path / "selftest.json"
    assert selftest.run("cpu", str(file)) == 0
    assert capsys.readouterr().out.strip().endswith("passed, 0 failed")
    document = json.loads(file.read_text())
    assert document["kind"] == "selftest"
    assert {row["op"] for row in document["rows"]} >= set(ops.NAMES[:9])
    assert all(row["ok"] for row in document["rows"])


@pytest.mark.parametrize("name", sorted(selftest.CHECKS))
def test_a_broken_op_fails_its_check(name, monkeypatch):
    original = getattr(ops, name)

    def broken(*args, **kwargs):
        result = original(*args, **kwargs)
        spoil(name, args, result)
        return result

    torch.manual_seed(0)
    monkeypatch.setattr(ops, name, broken)
    check, tolerance = selftest.CHECKS[name]
    assert not check(torch.device("cpu")) <= tolerance


def spoil(name, args, result):
    """A small change to what an op returned or wrote."""
    if name == "topk_lse":
        result[0].add_(1e-3)
    elif name == "tree_build":
        result.score[0, 2] += 1e-3
    elif name == "tree_mask":
        result[0, 3] ^= True
    elif name == "walk":
        result[0][:, 1] += 1
    elif name == "compact_kv":
        args[0][0][int(args[1][0, 1])] += 1
    elif name in ("conv_tree", "gdn_tree_verify"):
        result[0, 5] *= 1.001
    elif name == "gdn_replay_commit":
        args[8][5] *= 1.001
    elif name == "conv_commit":
        args[3][5] += 1
    else:
        raise AssertionError(f"No way to spoil {name} is written here yet.")
