"""The script that is sent to hosts: its age limit, and the parts that need no running service."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.inspecting.host_side.base import MASK, mask_argv, mask_text
from tasks.inspecting.host_side.imports import entry_points
from tasks.inspecting.host_side.models import snapshot
from tasks.inspecting.host_side.processes import role_of, unit_of
from tasks.inspecting.probe import Ask, read_files, script
from tasks.inspecting.serving import Serving, choose
from tests.inspect.conftest import LocalTransport

OLD_PYTHONS = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.[89].*/bin/python"))


def test_the_script_is_one_file_without_imports_of_ours() -> None:
    tree = ast.parse(script(), feature_version=(3, 8))
    modules = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert not any(module and module.startswith(("tasks", "orchestrator")) for module in modules)


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.8 or 3.9 on this machine")
@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parts[-3])
def test_old_interpreters_run_it(python: Path) -> None:
    options = json.dumps({"roots": ["/srv"], "seconds": 2})
    done = subprocess.run([python, "-IBS", "-", "probe", options], input=script(), capture_output=True, check=True)
    assert {"processes", "commands", "system", "copies"} <= set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("/v/bin/python -m sglang.launch_server --port 1", ("sglang", "server")),
        ("/v/bin/python -W ignore -u -m sglang.launch_server", ("sglang", "server")),
        ("/v/bin/python /v/bin/sglang serve --model-path m", ("sglang", "server")),
        ("sglang::scheduler_TP0", ("sglang", "scheduler_TP0")),
        ("/v/bin/python /v/bin/vllm serve model", ("vllm", "server")),
        ("python3 -m vllm.entrypoints.openai.api_server", ("vllm", "server")),
        ("VLLM::EngineCore", ("vllm", "EngineCore")),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve model", ("tensorrt_llm", "server")),
        ("/opt/llama.cpp/llama-server -m x.gguf", ("llama_cpp", "server")),
        ("/v/bin/python -c from multiprocessing.spawn import spawn_main", ("", "worker")),
        ("vim sglang.launch_server", ("", "")),
        ("grep vllm", ("", "")),
        ("/v/bin/python train.py --init sglang", ("", "")),
    ],
)
def test_roles(command: str, role: tuple[str, str]) -> None:
    argv = [command] if "::" in command else command.split(" ")
    assert role_of(argv) == role


def test_unit_of_a_cgroup() -> None:
    assert unit_of("0::/system.slice/sglang.service\n")[0] == "sglang.service"
    assert unit_of("0::/user.slice/user-0.slice/session-3.scope\n")[0] == "session-3.scope"
    assert unit_of("0::/lxc/200/ns/system.slice/sglang.service/sub\n")[0] == "sglang.service"
    assert unit_of("")[0] is None


def test_secrets_are_masked_and_nothing_else() -> None:
    argv = [
        "--api-key",
        "k1",
        "--hf-token=k2",
        "--max-total-tokens",
        "8192",
        "--tokenizer-path",
        "t",
        "--admin-api-key",
        "k3",
    ]
    assert mask_argv(argv) == [
        "--api-key", MASK, f"--hf-token={MASK}", "--max-total-tokens", "8192", "--tokenizer-path", "t", "--admin-api-key", MASK,
    ]  # fmt: skip
    unit = "Environment=\"HF_TOKEN=k4\" PORT=30000\nExecStart=python --api-key k5 --port 1\nMY_PASSWORD='k 6'"
    hidden = mask_text(unit)
    assert not any(secret in hidden for secret in ("k4", "k5", "k 6"))
    assert "PORT=30000" in hidden
    assert "--port 1" in hidden


@given(
    st.lists(st.text(min_size=1, max_size=10), max_size=8),
    st.text(alphabet="abcdef0123456789", min_size=12, max_size=20),
)
def test_no_value_after_a_secret_flag_survives(argv: list[str], secret: str) -> None:
    assert secret not in mask_argv([*argv, "--api-key", secret])[len(argv) :] or (argv and argv[-1].startswith("-"))


def test_entry_points() -> None:
    text = "[console_scripts]\nx = a:b\n\n[sglang.srt.plugins]\nsglang_ddtree = sglang_ddtree.plugin:register\n"
    assert entry_points(text) == [
        {"group": "sglang.srt.plugins", "name": "sglang_ddtree", "value": "sglang_ddtree.plugin:register"}
    ]


def test_a_repository_name_is_found_in_the_cache(tmp_path: Path, transport: LocalTransport) -> None:
    base = tmp_path / "models--owner--model"
    for commit in ("aaa", "bbb"):
        (base / "snapshots" / commit).mkdir(parents=True)
        (base / "snapshots" / commit / "config.json").write_text(json.dumps({"commit": commit}))
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("aaa\n")
    ask = Ask("/nowhere/owner/model", ["config.json"], repository="owner/model", hubs=[str(tmp_path)])
    found = read_files(transport, ask)
    assert json.loads(found.texts["config.json"]) == {"commit": "aaa"}
    assert snapshot("../../etc/passwd", [str(tmp_path)]) is None


def serving(argv: list[str], resolved: dict[str, object] | None = None) -> Serving:
    return Serving("sglang", 1, None, 0, 30000, argv, argv[0], "/v", resolved=resolved or {})


def test_launch_arguments_of_every_way_to_start() -> None:
    for start in (
        ["python", "-m", "sglang.launch_server"],
        ["python", "/v/bin/sglang", "serve"],
        ["python", "/s/launch_server.py"],
    ):
        found = serving([*start, "--model-path", "m", "--tp-size=2", "--trust-remote-code"])
        assert found.launch_args[0] == "--model-path"
        assert (found.option("model_path"), found.option("tp_size")) == ("m", "2")


def test_what_the_server_resolved_wins_over_its_command_line() -> None:
    found = serving(
        ["python", "-m", "sglang.launch_server", "--speculative-algorithm", "nextn"], {"speculative_algorithm": "EAGLE"}
    )
    assert found.algorithm == "EAGLE"
    assert serving(["python", "-m", "sglang.launch_server"]).algorithm is None


def test_the_service_is_chosen_by_port_then_unit() -> None:
    def item(pid: int, port: int, unit: str) -> dict[str, object]:
        argv = ["python", "-m", "sglang.launch_server", "--port", str(port)]
        return {"pid": pid, "argv": argv, "engine": "sglang", "unit": unit, "ports": [port], "exe": "python"}

    facts = {"processes": {"servers": [item(1, 30000, "a.service"), item(2, 30001, "b.service")]}}
    assert choose(facts, 30001, None)[0].pid == 2  # type: ignore[union-attr]
    assert choose(facts, 9, "a.service")[0].pid == 1  # type: ignore[union-attr]
    assert choose(facts, 9, None)[0] is None
