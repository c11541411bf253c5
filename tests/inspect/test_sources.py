"""Readers of engine source: facts of real releases (as fixtures), and what they make of odd or broken packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inspecting import versions_table
from tasks.inspecting.attention import read_attention
from tasks.inspecting.engine_hooks import Hook, check_hooks, gpu_hooks, gpu_lines, hooks, source_files, supported_lines
from tasks.inspecting.sglang_options import read_options
from tasks.inspecting.sglang_source import read_sglang
from tasks.inspecting.source import BundleTree
from tasks.inspecting.vllm_source import read_vllm

FIXTURES = Path(__file__).parent / "fixtures"
DOCS = Path(__file__).parents[2] / "docs" / "versions.md"


def facts(name: str) -> dict[str, dict[str, Any]]:
    return dict(json.loads((FIXTURES / f"{name}_versions.json").read_text()))


@pytest.mark.parametrize(
    ("version", "registers", "conv_gate", "sm_100"),
    [
        ("0.5.11", False, False, ["flashinfer", "triton"]),
        ("0.5.13.post1", True, False, ["flashinfer", "triton"]),
        ("0.5.14", True, True, ["flashinfer", "triton"]),
        ("0.5.16", True, True, ["triton"]),
        ("0.5.18", True, True, ["triton"]),
        ("0.5.20", True, True, ["triton"]),
        ("0.5.22", True, True, ["flashinfer", "triton"]),
        ("0.5.23", True, True, ["flashinfer", "triton"]),
    ],
)
def test_sglang_releases(version: str, registers: bool, conv_gate: bool, sm_100: list[str]) -> None:
    found = facts("sglang")[version]
    assert (found["version"], found["dflash"], found["ddtree"]) == (version, "linear", "none")
    assert found["registers_algorithms"] is registers
    assert any(gate.startswith("conv-window") for gate in found["gates"]) is conv_gate
    assert found["tree_backends_by_arch"]["sm_100"]["hybrid"] == sm_100
    assert found["tree_backends_by_arch"]["sm_120"]["hybrid"] == ["flashinfer", "triton"]
    assert "fa3" in found["tree_backends_by_arch"]["sm_90"]["hybrid"]
    assert found["notes"] == []


def test_the_releases_the_plugin_names_have_all_hooks() -> None:
    table = facts("sglang")
    for version in supported_lines():
        assert table[version]["hooks_not_present"] == {}
    assert table["0.5.11"]["hooks_not_present"]["CustomSpecAlgo"] == "missing"
    assert table["0.5.22"]["hooks_not_present"] == {"DFlashWorkerV2.__init__": "changed"}


def test_registered_algorithms_lack_methods_that_the_scheduler_calls() -> None:
    assert {"create_future_map", "need_topk", "carries_draft_hidden_states"} <= set(
        facts("sglang")["0.5.23"]["missing_custom_methods"]
    )


@pytest.mark.parametrize(
    ("version", "dflash", "tree_attention", "custom", "port"),
    [
        ("0.11.2", "none", True, False, "no"),
        ("0.20.2", "linear", True, False, "fork"),
        ("0.33.0", "linear", False, True, "fork"),
    ],
)
def test_vllm_releases(version: str, dflash: str, tree_attention: bool, custom: bool, port: str) -> None:
    found = facts("vllm")[version]
    assert (found["version"], found["dflash"], found["port"]) == (version, dflash, port)
    assert (found["tree_attention"], found["custom_proposer"]) == (tree_attention, custom)
    assert found["reasons"]


def test_the_documented_table_is_the_generated_one() -> None:
    assert DOCS.read_text() == versions_table.markdown(FIXTURES)


SPEC_INFO = """
from enum import Enum, auto
class SpeculativeAlgorithm(Enum):
    DFLASH = auto()
    {extra}
    NONE = auto()
    @classmethod
    def register(cls, name): ...
"""
WORKER = "class DFlashWorkerV2:\n    def __init__(self, server_args): ...\n"


def package(extra: str = "EAGLE = auto()", **files: str) -> BundleTree:
    base = {
        "_version.py": "__version__ = version = '9.9.9'\n",
        "srt/speculative/spec_info.py": SPEC_INFO.format(extra=extra),
        "srt/speculative/dflash_worker_v2.py": WORKER,
        "srt/plugins/__init__.py": 'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"\n',
    }
    return BundleTree("/p", {**base, **{name.replace("__", "/") + ".py": text for name, text in files.items()}})


def test_a_tree_capable_dflash_is_seen_by_its_links_not_by_its_version() -> None:
    info = "class DFlashVerifyInput:\n    topk: int = 4\n    retrieve_next_token: object = None\n"
    found = read_sglang(package(srt__speculative__dflash_info=info))
    assert (found.version, found.dflash.kind) == ("9.9.9", "tree")
    assert "retrieve_next_token" in found.dflash.evidence


def test_native_ddtree_is_seen_in_code_but_not_in_comments() -> None:
    assert read_sglang(package("DDTREE = auto()")).ddtree == "native"
    assert read_sglang(package(srt__speculative__tree="class DDTreeWorker: ...\n")).ddtree == "native"
    assert read_sglang(package(srt__speculative__tree="# ddtree may come\nx = 1\n")).ddtree == "none"


def test_no_dflash() -> None:
    tree = BundleTree(
        "/p", {"srt/speculative/spec_info.py": SPEC_INFO.format(extra="EAGLE = auto()").replace("DFLASH", "NGRAM")}
    )
    assert read_sglang(tree).dflash.kind == "none"


def test_an_empty_package_says_what_is_missing() -> None:
    found = read_sglang(BundleTree("/p", {}))
    assert found.version is None
    assert len(found.notes) == 3


def test_options_in_both_shapes() -> None:
    source = """
class ServerArgs:
    port: A[int, "The port."] = 30000
    trust_remote_code: A[bool, "Trust."] = False
    tp_size: A[int, Arg(help="TP", cli_name="--tensor-parallel-size", aliases=["--tp-size", "--tp"])] = 1
    names: A[Optional[List[str]], "Names."] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    plain: int = 3

    def add(parser):
        parser.add_argument("--old", dest="port", action=DeprecatedAliasStoreAction, new_flag="--port", type=int)
        parser.add_argument("--gone", action=DeprecatedAction, error_message="use --port")
        parser.add_argument("--switch", action="store_true")
"""
    found = read_options(BundleTree("/p", {"srt/server_args.py": source}))
    assert {name: option.takes for name, option in found.items()} == {
        "--port": "value", "--trust-remote-code": "flag", "--tensor-parallel-size": "value", "--tp-size": "value", "--tp": "value",
        "--names": "list", "--old": "value", "--gone": "flag", "--switch": "flag",
    }  # fmt: skip
    assert (found["--tp"].field, found["--old"].replaced_by, found["--gone"].stops) == ("tp_size", "--port", True)


REGISTRY = """
@register_attention_backend("masked")
def a(runner):
    from sglang.srt.layers.attention.masked_backend import Backend
@register_attention_backend("plain")
def b(runner):
    assert x, "This Backend requires SM>=80 and SM<=90."
    from sglang.srt.layers.attention.plain_backend import Backend
def attn_backend_wrapper(runner, full):
    if is_blackwell():
        if is_sm120_supported():
            allowed = {"plain"}
        else:
            allowed = {"masked", "plain"}
"""


def test_tree_backends_come_from_code_that_reads_the_mask() -> None:
    files = {
        "srt/layers/attention/attention_registry.py": REGISTRY,
        "srt/layers/attention/masked_backend.py": "def f(s):\n    custom_mask = s.custom_mask\n    return g(custom_mask)\n",
        "srt/layers/attention/plain_backend.py": "# custom_mask custom_mask custom_mask custom_mask\nx = 1\n",
    }
    found = read_attention(BundleTree("/p", files))
    assert {b.name: b.tree for b in found.backends.values()} == {"masked": True, "plain": False}
    assert found.backends["plain"].capability == (80, 90)
    assert found.hybrid_allowed == {"sm_120": ["plain"], "sm_100": ["masked", "plain"]}
    assert "verifies chains only" in (found.refusal("plain", "sm_90", False) or "")
    assert "no attention backend nope" in (found.refusal("nope", None, False) or "")


def test_hooks_are_read_as_data() -> None:
    table = hooks()
    assert len(table) >= 15
    assert all(":" in hook.target and hook.target.startswith("sglang.") and hook.why for hook in table)
    assert {"0.5.16", "0.5.20", "0.5.23"} <= set(supported_lines())


def test_states_of_hooks() -> None:
    tree = BundleTree(
        "/p",
        {
            "srt/a.py": "class Base:\n    def inherited(self, x): ...\nclass C(Base):\n    def m(self, batch, *args): ...\nclass D(Foreign): ...\n",
            "srt/b.py": "from sglang.srt.a import C as Renamed\nfrom elsewhere import far\n",
            "srt/pack/__init__.py": "from sglang.srt.pack.inner import *\ndef own(): ...\n",
        },
    )
    table = [
        Hook("sglang.srt.a:C.m", "subclass", ("self", "batch"), ""),
        Hook("sglang.srt.a:C.m", "subclass", ("self", "batch", "extra"), ""),
        Hook("sglang.srt.a:C.inherited", "call", ("x",), ""),
        Hook("sglang.srt.a:C.gone", "call", (), ""),
        Hook("sglang.srt.a:D.m", "call", (), ""),
        Hook("sglang.srt.b:Renamed", "call", (), ""),
        Hook("sglang.srt.b:far", "call", (), ""),
        Hook("sglang.srt.z:f", "call", (), ""),
        Hook("sglang.srt.pack:own", "call", (), ""),
        Hook("sglang.srt.pack:anything", "call", (), ""),
    ]
    states = [state.state for state in check_hooks(tree, "0.5.20", table)]
    assert states == ["present", "changed", "present", "missing", "unseen", "present", "unseen", "missing", "present", "unseen"]  # fmt: skip
    assert {"srt/pack.py", "srt/pack/__init__.py"} <= set(source_files(table))


def test_the_facts_of_releases_were_collected_with_the_hooks_of_now() -> None:
    """Otherwise a new hook may be missing everywhere, and nobody was told: see docs/inspect.md for how to collect them."""
    for version, found in facts("sglang").items():
        assert found["hook_count"] == len(check_hooks(BundleTree("/p", {}), version)), version


def test_a_line_that_runs_on_gpus_has_the_hooks_of_their_worker() -> None:
    assert gpu_lines()
    tree = BundleTree("/p", {})
    for line in supported_lines():
        seen = {state.target for state in check_hooks(tree, line)}
        assert seen.issuperset(hook.target for hook in gpu_hooks()) == (line in gpu_lines())


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "srt/server_args.py",
                "srt/speculative/spec_info.py",
                "config/speculative.py",
                "srt/layers/attention/attention_registry.py",
                "srt/plugins/__init__.py",
            ]
        ),
        st.text(max_size=80),
    )
)
def test_broken_source_is_survived(files: dict[str, str]) -> None:
    tree = BundleTree("/p", files)
    assert read_sglang(tree).dflash.kind == "none"
    assert read_vllm(tree).port == "no"
