"""The real SGLang scheduler in this process, stepped by hand; one at a time, because SGLang keeps global state."""

from __future__ import annotations

import array
import gc
import inspect
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

ENGINE = Path(__file__).resolve().parents[2] / "engine"
ROOT = Path(os.environ.get("ENGINE_TEST_MODELS") or ENGINE / "models")

# Starts of everyday Python, so that the shipped pairs (trained on Python text) have something to say.
PROMPTS = (
    "def fibonacci(n):\n    ",
    "import os\nimport sys\n\n\nclass ",
    "for i in range(10):\n    print(",
    '    """Return the sum of two numbers."""\n    return ',
    "if __name__ == '__main__':\n    ",
    "    def __init__(self, name, value=None):\n        self.name = ",
    "try:\n    with open(path) as f:\n        data = ",
    "    if not isinstance(value, str):\n        raise TypeError(",
)
NEW_TOKENS = 48
_ids = itertools.count()


@dataclass(frozen=True)
class Pair:
    """A target with its draft, in the layout of engine/models."""

    name: str
    target: Path
    draft: Path

    @classmethod
    def find(cls, name: str) -> Pair:
        folder = ROOT / name
        pair = cls(name, folder / "target", folder / "draft")
        for part in (pair.target, pair.draft):
            if not (part / "config.json").is_file():
                raise FileNotFoundError(f"{part} holds no model: the engine tests need the pairs of engine/models.")
        return pair

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.target)

    @cached_property
    def prompts(self) -> list[list[int]]:
        return [list(self.tokenizer(text)["input_ids"]) for text in PROMPTS]


@dataclass
class Answer:
    """What one request produced: token ids and verify rounds (0 without speculation)."""

    ids: list[int]
    rounds: int

    @property
    def tokens_per_round(self) -> float:
        return len(self.ids) / max(self.rounds, 1)


_current: list[Engine] = []


def close_current() -> None:
    """Close the running engine, if there is one, so that the next can start."""
    while _current:
        _current.pop().close()


class Engine:
    """One scheduler with its workers."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    @classmethod
    def start(
        cls,
        pair: Pair,
        algorithm: str | None = None,
        nodes: int | None = None,
        env: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Engine:
        """algorithm None, DFLASH or DDTREE; nodes is B; env holds SGLANG_DDTREE_* for this engine only."""
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.server_args import PortArgs, ServerArgs
        from sglang_ddtree import plugin

        close_current()
        plugin.register()
        torch.set_num_threads(1)
        settings: dict[str, Any] = {
            "model_path": str(pair.target),
            "device": "cpu",
            "dtype": "float32",
            "attention_backend": "intel_amx",
            "max_total_tokens": 4096,
            "max_running_requests": 8,
            "disable_overlap_schedule": True,
            "disable_cuda_graph": True,
            "random_seed": 0,
            "context_length": 512,
            "max_mamba_cache_size": 64,
            "skip_server_warmup": True,
            "log_level": "error",
        }
        if algorithm is not None:
            settings |= {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(pair.draft)}
        if nodes is not None:
            settings["speculative_num_draft_tokens"] = nodes + 1
        settings |= arguments
        for name in [key for key in os.environ if key.startswith("SGLANG_DDTREE_")]:
            del os.environ[name]
        os.environ.update(env or {})
        args = ServerArgs(**settings)
        ports = PortArgs.init_new(args)
        publish(args)
        if len(inspect.signature(Scheduler.__init__).parameters) == 3:
            scheduler = Scheduler(args, ports)
        else:
            scheduler = Scheduler(args, ports, 0, 0, 0, 0, 0, 0, None)
        scheduler.output_streamer.send_to_detokenizer = _Sink()
        engine = cls(scheduler)
        _current.append(engine)
        return engine

    def close(self) -> None:
        from sglang.srt.distributed import parallel_state

        self.scheduler = None
        gc.collect()
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()

    @property
    def worker(self) -> Any:
        return self.scheduler.draft_worker

    def add(self, prompt: Sequence[int], new_tokens: int, **fields: Any) -> Any:
        """Queue one greedy request; returns SGLang's own request object."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(temperature=0, max_new_tokens=new_tokens, ignore_eos=True)
        sampling.normalize(self.scheduler.tokenizer)
        vocabulary = self.scheduler.model_config.vocab_size
        request = Req(
            f"r{next(_ids)}",
            "",
            array.array("q", prompt),
            sampling,
            eos_token_ids={0},
            vocab_size=vocabulary,
            **fields,
        )
        request.tokenizer = self.scheduler.tokenizer
        self.scheduler._add_request_to_queue(request)
        return request

    def step(self) -> None:
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch = plan.running_batch
        batch = plan.batch_to_run
        if batch:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        scheduler.last_batch = batch

    def run(self, requests: Sequence[Any], stop: Callable[[], bool] = lambda: False, limit: int = 3000) -> None:
        """Step until every request is finished or ``stop()`` says so."""
        for _ in range(limit):
            if stop() or all(request.finished() for request in requests):
                return
            self.step()
        raise AssertionError(f"{len(requests)} requests did not finish within {limit} scheduler steps")

    def settle(self) -> None:
        """Let the scheduler notice that its last batch is finished."""
        self.step()
        self.step()

    def abort(self, request: Any) -> None:
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        request.to_finish = FINISH_ABORT("the test has seen enough")
        self.run([request], limit=50)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS) -> list[Answer]:
        """All prompts as one batch."""
        requests = [self.add(prompt, new_tokens) for prompt in prompts]
        self.run(requests)
        self.settle()
        return [Answer(list(r.output_ids)[:new_tokens], r.spec_verify_ct) for r in requests]

    def leaked_slots(self) -> int:
        """KV slots still taken after the prefix cache was emptied."""
        self.settle()
        self.scheduler.flush_cache()
        allocator = self.scheduler.token_to_kv_pool_allocator
        return int(allocator.size - allocator.available_size())


class _Sink:
    """Takes the place of the socket to the detokenizer."""

    def send_output(self, *output: Any) -> None:
        """Drops the output: the tests read the request objects."""


def add_noise(engine: Engine, share: float = 0.6) -> None:
    """Make a drafter worse but not useless: at ``share`` of the positions its best candidate changes places with one
    of the next three and loses most of its lead.  The text must not change, and siblings get accepted often."""
    worker, generator = engine.worker, torch.Generator().manual_seed(0)
    build = worker._tree

    def noisy_tree(hidden: torch.Tensor, head: Any, root: torch.Tensor, width: int) -> Any:
        from sglang_ddtree import ops

        original = ops.topk_lse

        def topk_lse(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            logp, ids = original(logits, k)
            for row in range(logp.shape[0]):
                if k > 3 and torch.rand((), generator=generator) < share:
                    other = int(torch.randint(1, 4, (), generator=generator))
                    ids[row, [0, other]] = ids[row, [other, 0]]
                    logp[row, 1 : other + 1] = logp[row, 0] - 0.1
            return logp, ids

        ops.topk_lse = topk_lse
        try:
            return build(hidden, head, root, width)
        finally:
            ops.topk_lse = original

    worker._tree = noisy_tree


def publish(args: Any) -> None:
    """Make ``args`` the process's settings, as a spawned scheduler does."""
    from sglang.srt import runtime_context

    if hasattr(runtime_context, "SpawnRanks"):
        ranks = runtime_context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
        runtime_context.publish(args, role="scheduler", ranks=ranks)
    else:
        runtime_context.publish(args, role="scheduler")


def source_environment() -> dict[str, str]:
    """The environment of a child that imports the engine from source and the sglang of this process."""
    folders = [os.environ.get("ENGINE_SGLANG_TREE", ""), str(ENGINE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(f for f in folders if f)}
