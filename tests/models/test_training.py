"""The training code: data order, the delta rule, resumption, and every stage once in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from models.train import corpus, dataset, evaluate, export, gdn, loop, rollout
from models.train.modules import Draft, Target, propose
from models.train.pair import Settings, train_pair
from models.train.spec import PAIRS
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a small standard library."""
    root = tmp_path_factory.mktemp("library")
    for i in range(120):
        body = "\n\n".join(
            f'def helper_{i}_{j}(value):\n    """Return the value raised by {"one" * (j + 1)} steps."""\n'
            f"    result = value + {j}\n    return result"
            for j in range(6)
        )
        (root / f"module_{i}.py").write_text(f'"""Module number {i}: {"words of text " * 20}"""\n\n\n{body}\n')
    (root / "copy.py").write_text((root / "module_1.py").read_text())
    (root / "table.txt").write_text("\n".join(str(n) for n in range(5000)))
    (root / "binary.py").write_bytes(b"\xff\xfe" * 300)
    return root


def test_documents_are_ordered_by_content_and_unreadable_or_double_ones_dropped(library: Path) -> None:
    documents = corpus.library_documents(library)
    assert len(documents) == 120
    assert corpus.corpus_hash(documents) == corpus.corpus_hash(corpus.library_documents(library))
    assert {d.held_out for d in documents} == {True, False}


def test_chat_examples_come_from_training_documents_only(library: Path) -> None:
    documents = corpus.library_documents(library)
    chats = "".join(d.text for d in corpus.chat_documents(documents))
    for document in documents:
        number = document.source.removesuffix(".py").removeprefix("module_")
        if document.source != "copy.py":
            assert (f"`helper_{number}_0`" in chats) is not document.held_out
    assert all(text.endswith("<|im_end|>\n") for text in (d.text for d in corpus.chat_documents(documents)))


@pytest.mark.parametrize("length", [64, 100, 256])
def test_own_delta_rule_equals_transformers_in_values_and_gradients(length: int) -> None:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k = (torch.nn.functional.normalize(draw(2, length, 3, 32) + 0.5, dim=-1) for _ in range(2))
    inputs = [
        q,
        k,
        draw(2, length, 3, 32),
        -torch.nn.functional.softplus(draw(2, length, 3) - 2) * 2,
        torch.sigmoid(draw(2, length, 3)),
    ]
    inputs = [t.requires_grad_() for t in inputs]
    upstream = draw(2, length, 3, 32)
    own = gdn.chunked_delta_rule(*inputs)
    theirs, _ = torch_chunk_gated_delta_rule(*inputs)
    torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-3)
    for mine, other in zip(
        torch.autograd.grad(own, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(mine, other, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_blocks_of_a_draft_do_not_see_each_other_or_what_comes_later() -> None:
    spec = PAIRS["tiny-dense"]
    target, draft = Target(spec, torch.Generator().manual_seed(0)), Draft(spec, torch.Generator().manual_seed(1))
    ids = torch.randint(4, 2048, (1, 90), generator=torch.Generator().manual_seed(2))
    _, features = target(ids, torch.float32)
    together = propose(target, draft, features, ids, torch.tensor([[20, 33, 60]]), torch.float32)
    features[:, 33:] = 7.0
    alone = propose(target, draft, features, ids, torch.tensor([[33]]), torch.float32)
    torch.testing.assert_close(together[:, 1:2], alone, atol=1e-5, rtol=1e-4)


class _Crash(Exception):
    pass


def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    stream = torch.randint(4, 2048, (3000,), generator=torch.Generator().manual_seed(3)).to(torch.int16)

    def run(crash_at: int | None, path: Path) -> Target:
        target = Target(PAIRS["tiny-dense"], torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(4)
        calls = 0

        def loss() -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == crash_at:
                raise _Crash
            hidden, _ = target(dataset.windows(stream, 2, 32, generator), torch.float32)
            return hidden.pow(2).mean()

        budget = loop.Budget(seconds=1e9, lr=1e-3, steps=6, warmup=2, checkpoint_seconds=0.0)
        loop.train("test", target, loss, budget, generator, path)
        return target

    straight = run(None, tmp_path / "straight.ckpt")
    with pytest.raises(_Crash):
        run(4, tmp_path / "broken.ckpt")
    resumed = run(None, tmp_path / "broken.ckpt")
    for mine, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
    assert not (tmp_path / "broken.ckpt").exists()


@pytest.fixture(scope="module")
def data() -> dataset.Dataset:
    generator = torch.Generator().manual_seed(5)
    streams = [torch.randint(4, 2048, (4000,), generator=generator).to(torch.int16) for _ in range(2)]
    tokenizer = Path(__file__).resolve().parents[2] / "engine" / "models" / "tiny-dense" / "target" / "tokenizer.json"
    return dataset.Dataset(*streams, tokenizer.read_text(encoding="utf-8"), {"sha256": "0" * 64})


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-hybrid"])
def test_every_stage_runs_and_a_second_call_repeats_nothing(
    name: str, data: dataset.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(1e9, 1e9, steps=3, batch=2, draft_batch=2, anchors=4, rollouts=2, rollout_batch=2, scale=8)
    provenance = train_pair(PAIRS[name], data, tmp_path / name, settings, torch.device("cpu"))
    assert provenance["target"]["steps"] == provenance["draft"]["steps"] == 3
    assert len(provenance["draft_top1_on_held_out_text"]) == 15
    before = (tmp_path / name / "draft" / "model.safetensors").read_bytes()
    capsys.readouterr()
    train_pair(PAIRS[name], data, tmp_path / name, settings, torch.device("cpu"))
    assert capsys.readouterr().err.count("already trained") == 2
    assert (tmp_path / name / "draft" / "model.safetensors").read_bytes() == before
    rows, lengths = rollout.write_rows(
        tmp_path / name / "target", data.train, 2, torch.Generator().manual_seed(6), 2, scale=8
    )
    assert rows.shape == (6, rollout.ROW // 8)
    assert lengths.tolist() == [4, 4, 16, 16, 48, 48]


def test_the_oracle_says_what_a_trained_pair_accepts_on_held_out_text(data: dataset.Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-dense"
    settings = Settings(1e9, 1e9, steps=3, batch=2, draft_batch=2, anchors=4, rollouts=2, rollout_batch=2, scale=8)
    train_pair(PAIRS["tiny-dense"], data, folder, settings, torch.device("cpu"))
    found = evaluate.evaluate(folder, data, "cpu", scale=8)
    rates = found["held_out"]["all"]["tokens_per_step"]
    assert found["held_out"]["all"]["prompts"] == evaluate.PROMPTS // 8
    assert 1 <= rates["chain"] <= rates["64"] <= 16
    assert json.loads((folder / "provenance.json").read_text())["acceptance"] == found
    assert "tiny-dense held_out all: 3 prompts, chain " in evaluate.text("tiny-dense", found)


def test_an_archive_in_parts_unpacks_to_the_same_files(tmp_path: Path) -> None:
    import io
    import lzma
    import tarfile

    folder = tmp_path / "pair"
    folder.mkdir()
    (folder / "weights").write_bytes(torch.randn(50_000).numpy().tobytes())
    names = export.archive(folder, tmp_path / "out", part_bytes=60_000)
    assert len(names) > 2
    packed = b"".join((tmp_path / "out" / n).read_bytes() for n in names)
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed))) as tar:
        assert tar.extractfile("pair/weights").read() == (folder / "weights").read_bytes()
