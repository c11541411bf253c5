"""Launches: what changes between the linear service and the tree, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.release.launch import Launch, flag_value, with_flags
from tasks import launch

ARGV = (
    "/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/target", "--speculative-algorithm=DFLASH",
    "--speculative-draft-model-path", "/m/draft", "--port", "30000", "--mem-fraction-static", "0.85",
)  # fmt: skip
LINEAR = Launch(argv=ARGV, env={"A": "1"})
CHANGED = (launch.ALGORITHM, launch.WIDTH)


@given(st.integers(1, 1024))
def test_only_algorithm_and_width_differ(nodes):
    tree = launch.tree_launch(LINEAR, nodes, {})
    assert launch.algorithm_of(tree.argv) == "DDTREE"
    assert flag_value(tree.argv, launch.WIDTH) == str(nodes + 1)
    assert with_flags(tree.argv, {}, remove=CHANGED) == with_flags(ARGV, {}, remove=CHANGED)
    assert tree.env == LINEAR.env


def test_a_tree_on_another_port_keeps_everything_else():
    moved = launch.on_port(LINEAR, 31000)
    assert flag_value(moved.argv, launch.PORT) == "31000"
    assert with_flags(moved.argv, {}, remove=(launch.PORT,)) == with_flags(ARGV, {}, remove=(launch.PORT,))


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "NGRAM"])
def test_a_service_with_another_algorithm_is_refused_by_name(algorithm):
    other = LINEAR.model_copy(update={"argv": with_flags(ARGV, {launch.ALGORITHM: algorithm})})
    with pytest.raises(UsageError, match=algorithm):
        launch.tree_launch(other, 15, {})


def test_a_service_without_draft_is_refused():
    bare = LINEAR.model_copy(update={"argv": with_flags(ARGV, {}, remove=(launch.DRAFT,))})
    with pytest.raises(UsageError, match="draft"):
        launch.tree_launch(bare, 15, {})


def test_knobs_of_none_are_left_to_the_engine():
    tree = launch.tree_launch(LINEAR, 15, {"topk": 8, "spine": None})
    assert tree.env == {"A": "1", "SGLANG_DDTREE_TOPK": "8"}


@pytest.mark.parametrize(
    "speculation",
    [
        (),
        ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        (
            "--speculative-algorithm=EAGLE3",
            "--speculative-draft-model-path",
            "/m/eagle",
            "--speculative-token-map",
            "/t",
        ),
        ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
    ],
    ids=["none", "nextn", "eagle3", "ngram"],
)
def test_dflash_replaces_whatever_speculation_ran_before(speculation):
    before = ("/v/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/t", *speculation, "--tp", "8")
    found = Launch(argv=before, env={"A": "1"}, user="deploy")
    made = launch.linear_launch(found, "/m/draft", 16)
    assert made.argv == (
        "/v/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/t", "--tp", "8",
        "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/m/draft",
        "--speculative-num-draft-tokens", "16",
    )  # fmt: skip
    assert (made.env, made.user) == (found.env, found.user)
    assert launch.tree_launch(made, 32, {}).argv.count("--speculative-num-draft-tokens") == 1


def test_an_adaptive_service_holds_the_chain_and_what_lies_between():
    named = LINEAR.model_copy(update={"argv": (*ARGV, launch.WIDTH, "16")})
    tree = launch.tree_launch(named, 64, launch.adaptive_knobs(named, 64))
    assert tree.env == {"A": "1", "SGLANG_DDTREE_WIDTHS": "chain,16,32,64", "SGLANG_DDTREE_WIDTH": "auto"}
    assert launch.adaptive_knobs(named, 31)["widths"] == "chain,15,31"
    assert launch.adaptive_knobs(named, 15)["widths"] == "chain,15"
    assert launch.adaptive_knobs(LINEAR, 64)["widths"] == "chain,64"  # the block is not known here
