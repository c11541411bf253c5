"""What a DDTREE run leaves behind equals what decoding without speculation leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Engine, Pair, add_noise

TOLERANCE = 2e-4  # relative; float32 sums in another order


def kv_rows(pool: Any, slots: torch.Tensor) -> torch.Tensor:
    pool = getattr(pool, "full_kv_pool", pool)
    return torch.stack([b[slots].float().reshape(len(slots), -1) for b in (*pool.k_buffer, *pool.v_buffer)])


def snapshot(engine: Engine, request: Any, rows: int) -> dict[str, torch.Tensor]:
    """The first KV rows of a live request in both models, and its recurrent states."""
    runner = engine.scheduler.tp_worker.model_runner
    index = request.req_pool_idx if getattr(request.kv, "req_pool_idx", None) is None else request.kv.req_pool_idx
    slots = runner.req_to_token_pool.req_to_token[index, :rows].long()
    found = {"target": kv_rows(runner.token_to_kv_pool, slots)}
    if engine.worker is not None:
        found["draft"] = kv_rows(engine.worker.draft_model_runner.token_to_kv_pool, slots)
    pool = getattr(runner.req_to_token_pool, "mamba_pool", None)
    if pool is not None:
        slot = runner.req_to_token_pool.get_mamba_indices(torch.tensor([index])).long()
        found["state"] = pool.mamba_cache.temporal[:, slot].float().clone()
        found["window"] = torch.cat([c[:, slot].float().reshape(-1) for c in pool.mamba_cache.conv])
    return found


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("nodes", [15, 31])
def test_caches_equal_those_of_plain_decoding(pair: Pair, nodes: int, engine: type[Engine]):
    prompts = pair.prompts[:3]
    running = engine.start(pair, "DDTREE", nodes)
    add_noise(running)
    seen = []
    for prompt in prompts:
        request = running.add(prompt, 200)
        running.run([request], lambda request=request: len(request.output_ids) >= 40)
        rows = request.kv.kv_committed_len
        seen.append((rows, list(request.output_ids), snapshot(running, request, rows)))
        running.abort(request)
    plain = engine.start(pair)
    for prompt, (rows, output, found) in zip(prompts, seen, strict=True):
        request = plain.add(prompt, 200)
        wanted = len(output)
        plain.run([request], lambda request=request, wanted=wanted: len(request.output_ids) >= wanted)
        assert list(request.output_ids) == output
        expected = snapshot(plain, request, rows)
        assert {"state", "window"} <= set(expected) or pair.name == "tiny-dense"
        for name, tensor in expected.items():
            assert distance(found[name], tensor) < TOLERANCE, name
        plain.abort(request)
    linear = engine.start(pair, "DFLASH", disable_radix_cache=True)
    for prompt, (rows, output, found) in zip(prompts, seen, strict=True):
        request = linear.add((list(prompt) + output)[:rows], 20)  # a prefill of the same tokens
        linear.step()
        assert distance(found["draft"], snapshot(linear, request, rows)["draft"]) < TOLERANCE
        linear.abort(request)


def test_prefix_hit_on_compacted_rows_continues_the_same_text(pair, engine):
    plain = [a.ids for a in engine.start(pair).generate(pair.prompts[:4])]
    running = engine.start(pair, "DDTREE", 15)
    add_noise(running)
    running.generate(pair.prompts[:4])
    cached = 0
    for prompt, text in zip(pair.prompts[:4], plain, strict=True):
        request = running.add(prompt + text[:30], 18)
        running.run([request])
        assert list(request.output_ids)[:18] == text[30:48]
        cached += request.cached_tokens
    assert cached > 0
    assert running.leaked_slots() == 0


def test_requests_join_and_leave_at_any_step(pair, engine):
    plain = [a.ids for a in engine.start(pair).generate(pair.prompts[:4])]
    running = engine.start(pair, "DDTREE", 31)
    lengths = [9 + 5 * i for i in range(8)]
    requests = []
    for i, length in enumerate(lengths):
        requests.append(running.add(pair.prompts[i % 4], length))
        running.step()
    running.run(requests)
    for i, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        assert request.finished_len == length
        assert list(request.output_ids)[:length] == plain[i % 4][:length]
    assert running.leaked_slots() == 0


def test_retracted_requests_come_back_with_the_same_text(pair, engine):
    plain = [a.ids for a in engine.start(pair).generate(pair.prompts[:4])]
    longest = max(len(p) for p in pair.prompts[:4])
    pool = 2 * (longest + 48) + 4 * 32  # too small for four requests to finish together
    running = engine.start(pair, "DDTREE", 15, max_total_tokens=pool)
    requests = [running.add(prompt, 48) for prompt in pair.prompts[:4]]
    running.run(requests)
    assert [list(r.output_ids)[:48] for r in requests] == plain
    assert sum(r.retraction_count for r in requests) > 0


@pytest.mark.parametrize("chunk", [4])
def test_chunked_prefill(pair, chunk, engine):
    plain = [a.ids for a in engine.start(pair).generate(pair.prompts[:4])]
    running = engine.start(pair, "DDTREE", 16, chunked_prefill_size=chunk)
    assert [a.ids for a in running.generate(pair.prompts[:4])] == plain


def near_the_limit(pair: Pair, running: Engine, limit: int) -> list[list[int]]:
    """One request that fills the context to its last token, and a short neighbour beside it."""
    first = running.add(pair.prompts[0], limit - len(pair.prompts[0]) - 1)
    second = running.add(pair.prompts[1], limit - len(pair.prompts[1]) - 12)
    running.run([first, second])
    return [list(r.output_ids)[: r.finished_len] for r in (first, second)]


@pytest.mark.parametrize("nodes", [15, 31, 64])
def test_last_tokens_of_the_context(pair, nodes, engine):
    limit = 70
    expected = near_the_limit(pair, engine.start(pair, context_length=limit), limit)
    running = engine.start(pair, "DDTREE", nodes, context_length=limit)
    columns = running.scheduler.tp_worker.model_runner.req_to_token_pool.req_to_token.shape[1]
    assert columns >= limit + 2 * (nodes + 1)
    assert near_the_limit(pair, running, limit) == expected
    assert running.leaked_slots() == 0


def test_without_the_wider_rows_the_step_leaves_its_row(dense, engine, monkeypatch):
    """The negative control of the patch: SGLang's own row length is too short for two widths."""
    import sglang.srt.mem_cache.kv_cache_configurator as module

    engine.start(dense, "DDTREE", 31, context_length=70)  # installs the patches
    patched = module.get_req_to_token_extra_context_len
    monkeypatch.setattr(module, "get_req_to_token_extra_context_len", patched.__wrapped__)
    monkeypatch.setattr("sglang_ddtree.patches.widen_request_rows", lambda: None)
    running = engine.start(dense, "DDTREE", 31, context_length=70)
    with pytest.raises(RuntimeError):
        near_the_limit(dense, running, 70)
