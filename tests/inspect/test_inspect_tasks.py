"""The tasks that inspect, as a run uses them: against a running stand-in, its package and both models."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.recent import Recent
from tasks.inspect_model import InspectModel, ModelsDoNotFit
from tasks.inspect_sglang import InspectSglang, ServiceChanged
from tasks.inspect_vllm import InspectVllm
from tasks.inspecting import Scope
from tasks.recommend import MapRisks, Recommend
from tests.inspect.conftest import LocalTransport, Start, make_package, make_venv
from tests.inspect.test_advice import load


class Context:
    """What the tasks use of a run."""

    def __init__(self, transport: LocalTransport, config: Any) -> None:
        self.host = SimpleNamespace(
            name="here", transport=transport, config=config, recent=Recent(), secret=lambda _: None
        )
        self.outputs: dict[str, Any] = {}

    def output(self, key: str) -> Any:
        return self.outputs.get(key, {})

    def log(self, line: str) -> None:
        pass

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        pass


@pytest.fixture
def service(start: Start, free_port: int, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A running stand-in with both models; Scope.of passes a Scope through."""
    python, site = make_venv(scratch / "service")
    make_package(site, "0.5.20")
    for name in ("hybrid_27b", "draft_27b"):
        (scratch / name).mkdir()
        for file, value in load(f"models/{name}").items():
            (scratch / name / file).write_text(json.dumps(value))
    argv = [str(python), "-m", "sglang.launch_server", "--port", str(free_port), "--speculative-algorithm", "DFLASH"]
    models = ["--model-path", str(scratch / "hybrid_27b"), "--speculative-draft-model-path", str(scratch / "draft_27b")]
    monkeypatch.setattr(Scope, "of", classmethod(lambda cls, config: config))
    scope = Scope("here", port=free_port, roots=(str(scratch),), systemd=False)
    return SimpleNamespace(
        process=start([*argv, *models], free_port), argv=[*argv, *models], scope=scope, port=free_port
    )


def test_the_tasks_of_a_run(transport: LocalTransport, service: Any) -> None:
    ctx: Any = Context(transport, service.scope)
    for key, action in (("inspect-sglang", InspectSglang()), ("inspect-vllm", InspectVllm()), ("inspect-model", InspectModel()),
                        ("map-risks", MapRisks()), ("recommend", Recommend())):  # fmt: skip
        ctx.outputs[key] = json.loads(json.dumps(action.apply(ctx)))
        evidence = action.verify(ctx)
        assert evidence.output
        json.dumps(dict(evidence.data))
        assert action.identity(ctx.outputs[key])
    sglang = ctx.outputs["inspect-sglang"]
    assert sglang["sglang"]["service"]["pid"] == service.process.pid
    assert sglang["setting"]["running_requests"] == 4  # as the server itself says
    assert ctx.outputs["inspect-model"]["model"]["target"]["kind"] == "hybrid"
    assert ctx.outputs["recommend"]["markdown"].startswith("### Host and engine")


def test_a_host_where_nothing_changed_is_not_inspected_again(
    transport: LocalTransport, service: Any, scratch: Path, start: Start
) -> None:
    def again(action: Any, earlier: Any) -> bool:
        ctx: Any = Context(transport, service.scope)
        ctx.earlier = earlier
        return bool(action.probe(ctx).satisfied)

    ctx: Any = Context(transport, service.scope)
    actions = (InspectSglang(), InspectVllm(), InspectModel())
    earlier = [json.loads(json.dumps(action.apply(ctx))) for action in actions]
    assert len({one["stamp"] for one in earlier}) == 1
    assert [again(action, one) for action, one in zip(actions, earlier, strict=True)] == [True] * 3
    assert not again(actions[0], None)
    before = transport.commands
    assert again(actions[0], earlier[0])
    assert transport.commands - before == 2
    idle = scratch / "idle" / "lib" / "python3" / "site-packages" / "vllm"  # an environment that serves nothing
    (idle / "engine").mkdir(parents=True)
    (idle / "__init__.py").write_text("")
    assert not again(actions[1], earlier[1])
    shutil.rmtree(scratch / "idle")
    assert again(actions[1], earlier[1])
    config = scratch / "draft_27b" / "config.json"
    config.write_text(config.read_text() + "\n")
    assert not again(actions[2], earlier[2])
    now = InspectModel().apply(Context(transport, service.scope))  # type: ignore[arg-type]
    source = next(scratch.glob("service/lib/*/site-packages/sglang/srt/speculative/spec_info.py"))
    source.write_text(source.read_text() + "\n")
    assert not again(actions[2], now)
    now = InspectModel().apply(Context(transport, service.scope))  # type: ignore[arg-type]
    service.process.terminate()
    service.process.wait(10)
    start(service.argv, service.port)
    assert not again(actions[2], now)


def test_a_service_that_restarts_meanwhile_is_noticed(transport: LocalTransport, service: Any, start: Start) -> None:
    ctx: Any = Context(transport, service.scope)
    action = InspectSglang()
    action.apply(ctx)
    service.process.terminate()
    service.process.wait(10)
    start(service.argv, service.port)
    with pytest.raises(ServiceChanged, match="the service changed while it was inspected"):
        action.verify(ctx)


def test_a_missing_draft_stops_the_model_task(transport: LocalTransport, service: Any, scratch: Path) -> None:
    (scratch / "draft_27b" / "config.json").unlink()
    with pytest.raises(ModelsDoNotFit, match="the draft model can't be judged"):
        InspectModel().verify(Context(transport, service.scope))  # type: ignore[arg-type]


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """A whole file of zeros with these tensors."""
    entries, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + bytes(offset)


def test_the_draft_is_checked_down_to_its_tensors(transport: LocalTransport, service: Any, scratch: Path) -> None:
    """The projection of five tapped layers must take 5 x 5120 values; a draft for another width is refused."""
    (scratch / "draft_27b" / "model.safetensors").write_bytes(safetensors({"fc.weight": [5120, 5 * 64]}))
    (scratch / "draft_27b" / "broken.safetensors").write_bytes(b"not one")
    ctx: Any = Context(transport, service.scope)
    found = InspectModel().apply(ctx)["model"]["compat"]
    assert found["facts"]["mask_token_id"] == 248070
    assert found["ok"] is False
    assert any("fc.weight" in problem for problem in found["problems"])
    with pytest.raises(ModelsDoNotFit, match="the draft does not fit the target"):
        InspectModel().verify(ctx)


def test_another_tokenizer_beside_the_draft_is_seen(transport: LocalTransport, service: Any, scratch: Path) -> None:
    for name, vocab in (("hybrid_27b", {"a": 0}), ("draft_27b", {"b": 0})):
        tokenizer = {"model": {"vocab": vocab}, "added_tokens": [{"content": "<|mask|>", "id": 248070}]}
        (scratch / name / "tokenizer.json").write_text(json.dumps(tokenizer))
    problems = InspectModel().apply(Context(transport, service.scope))["model"]["compat"]["problems"]  # type: ignore[arg-type]
    assert any("another tokenizer" in problem for problem in problems)
