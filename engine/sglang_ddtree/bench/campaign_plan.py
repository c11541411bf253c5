"""Which servers a campaign starts for one pair of target and draft, and with what arguments."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .server import Server, ddtree, linear

CONTEXT = 1024
READING = 64  # tokens by which the reference's context is longer: SGLang refuses to read a text that fills it
CHUNK = 128
BATCH = 32
PROMPT_SETS = ("code", "chat", "verbatim", "math")
ENGINE = Path(__file__).resolve().parents[2]
# Switches that must not change a text, each on a server of its own.
VARIANTS: dict[str, list[str]] = {
    "eager": ["--disable-cuda-graph"],
    "no overlap": ["--disable-overlap-schedule"],
    "triton": [],
    "page 16": ["--page-size", "16"],
    "16 rows": [],
}
MAIN = ("reference", "linear", "tree")
SEEDED = ("seeded reference", "seeded tree")
# Servers that hold several widths and are switched.  One of them spans two GPUs.
HELD = {"widths": ("chain", "15", "22", "32", "64", "256"), "two GPUs": ("chain", "15", "32", "63")}
TWO_GPUS = "two GPUs"
# Servers that must end with a sentence that holds these words.  An allocator that may take half a percent of the card
# runs out of memory while graphs are captured, and disturbs nobody else.
CAPTURE_LIMIT = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.005"}
REFUSED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "refused: another backend": (["--attention-backend", "torch_native"], {}, "DDTREE needs --attention-backend fa3"),
    "refused: too many rows": (
        ["--speculative-num-draft-tokens", "1025", "--max-running-requests", "8192"], {}, "fits"
    ),
    "refused: no budget": ([], {"SGLANG_DDTREE_WIDTHS": "0"}, "SGLANG_DDTREE_WIDTHS"),
    "refused: memory at capture": (["--speculative-num-draft-tokens", "1025"], CAPTURE_LIMIT, "Capture cuda graph failed"),
}  # fmt: skip
# A negative control: FlashAttention's page table as SGLang makes it, whose rows are too narrow near the context limit.
NARROW = "narrow page table"
NARROW_CHANGE = ("verify_attention.py", '    if not hasattr(backend, "max_num_pages"):', "    if True:")


class Reference(Server):
    """The server that does not speculate: answers one caller at a time, and greedy questions once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[str, Any] = {}
        self._lock = threading.RLock()

    def post(self, path: str, body: dict[str, Any], timeout: float = 120) -> Any:
        with self._lock:
            return super().post(path, body, timeout)

    def generate(self, ids: Any, tokens: int, **sampling: Any) -> Any:
        """As ``Server.generate``; a greedy answer is kept, so every check compares with the same one."""
        if sampling.get("temperature", 0) != 0:
            return super().generate(ids, tokens, **sampling)
        key = json.dumps([ids, tokens, sampling])
        with self._lock:
            if key not in self._known:
                self._known[key] = super().generate(ids, tokens, **sampling)
            return self._known[key]

    def once(self, key: str, ask: Callable[[], Any]) -> Any:
        """What ``ask`` gave the first time: samples that several servers are compared with."""
        with self._lock:
            if key not in self._known:
                self._known[key] = ask()
            return self._known[key]


@dataclass
class Plan:
    """One pair: folders, widths and the servers that are asked."""

    label: str
    target: str
    draft: str
    width: int
    on_cpu: bool
    gpu: str = ""  # the device of servers on one GPU; empty: the first
    servers: dict[str, Server] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def arguments(self, arm: str) -> list[str]:
        backend = "intel_amx" if self.on_cpu else ("triton" if arm == "triton" else "fa3")
        context = CONTEXT + READING if arm == "reference" else CONTEXT
        base = ["--model-path", self.target, "--attention-backend", backend, "--context-length", str(context)]
        if not self.on_cpu:
            base += [
                "--mem-fraction-static", "0.3", "--max-total-tokens", "60000", "--max-running-requests", str(BATCH),
                "--cuda-graph-max-bs-decode", str(BATCH), "--chunked-prefill-size", str(CHUNK), "--trust-remote-code",
            ]  # fmt: skip
        if "hybrid" in self.label and not self.on_cpu:
            base += ["--max-mamba-cache-size", "256"]  # else states so small fill the card
        if arm == TWO_GPUS:
            base += ["--tp-size", "2", "--disable-custom-all-reduce"]
        if arm in SEEDED:
            base.append("--enable-deterministic-inference")
        if arm in ("reference", "seeded reference"):
            # With overlap SGLang's own penalties are one token late.
            return [*base, "--disable-overlap-schedule"]
        if arm == "linear":
            return base + linear(self.draft, backend)
        draft = self.broken_draft() if arm == "broken draft" else self.draft
        width = 1 + int(HELD[arm][-1]) if arm in HELD else 16 if arm == "16 rows" else self.width
        return base + ddtree(draft, backend, width) + self._extra(arm)

    def _extra(self, arm: str) -> list[str]:
        if arm in REFUSED:
            return REFUSED[arm][0]
        if arm in HELD:
            return ["--cuda-graph-max-bs-decode", "8"]  # per width; larger batches run without graphs
        return ["--enable-metrics"] if arm == "broken draft" else VARIANTS.get(arm, [])

    def environment(self, arm: str, scratch: Path) -> dict[str, str]:
        """What an arm's server gets beside this process's environment."""
        found = {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu and arm != TWO_GPUS else {}
        if arm in HELD:
            found |= {"SGLANG_DDTREE_WIDTHS": ",".join(HELD[arm]), "SGLANG_DDTREE_CONTROL_TOKEN": self.token}
        if arm in REFUSED:
            found |= REFUSED[arm][1]
        if arm == NARROW:
            changed = changed_engine(*NARROW_CHANGE, scratch / f"changed-{self.label}")
            found["PYTHONPATH"] = os.pathsep.join([str(changed), os.environ.get("PYTHONPATH", "")])
        return found

    def broken_draft(self) -> str:
        """A copy of the draft whose last norm is NaN, so that every hidden state it gives is."""
        import torch
        from safetensors.torch import load_file, save_file

        folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"broken-draft-{self.label}-{os.getpid()}"
        shutil.copytree(self.draft, folder, dirs_exist_ok=True)
        for file in folder.glob("*.safetensors"):
            weights = load_file(file)
            names = [name for name in weights if name in ("norm.weight", "model.norm.weight")]
            if not names:
                raise ValueError(f"{file} has no final norm to break: look for its name in the draft's weights.")
            for name in names:
                weights[name] = torch.full_like(weights[name], torch.nan)
            save_file(weights, file, metadata={"format": "pt"})
        return str(folder)

    def start(self, arms: list[str], logs: Path, port: int) -> None:
        for i, arm in enumerate(arms):
            log = logs / f"{self.label}-{arm.replace(' ', '-').replace(':', '')}.log"
            kind = Reference if arm in ("reference", "seeded reference") else Server
            environment = self.environment(arm, logs)
            self.servers[arm] = kind(arm, self.arguments(arm), port + 20 * i, log, environment, self.on_cpu)

    def stop(self, keep: tuple[str, ...] = ()) -> None:
        for name in [name for name in self.servers if name not in keep]:
            self.servers.pop(name).stop()


def arms_of(on_cpu: bool, hybrid: bool, gpus: int = 1) -> list[str]:
    """Everything this machine runs; seeds and bad starts once, since they have nothing to do with recurrent layers."""
    once = [] if hybrid else [*SEEDED, *REFUSED]
    extra = [] if on_cpu else [*VARIANTS, "widths", NARROW, *once]
    return [*MAIN, *extra, "broken draft", *([TWO_GPUS] if gpus > 1 else [])]


def changed_engine(file: str, before: str, after: str, folder: Path) -> Path:
    """A copy of the engine's packages in which one line of DDTREE's code differs: the folder to import it from."""
    shutil.copytree(
        ENGINE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("models", "results", "__pycache__")
    )
    path = folder / "sglang_ddtree" / file
    text = path.read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise ValueError(f"{file} has the line to change {text.count(before)} times, not once: adapt the control.")
    path.write_text(text.replace(before, after), encoding="utf-8")
    return folder


def target_for(folder: Path) -> str:
    """The folder of a pair's target as the SGLang of this environment can load it."""
    # The converter lies beside the pairs, wherever this package was installed from.
    home = str(folder.resolve().parents[1])
    if home not in sys.path:
        sys.path.append(home)
    from models.servable import servable

    scratch = Path(os.environ.get("TMPDIR", "/tmp")) / f"{folder.name}-converted-{os.getpid()}"
    return str(servable(folder / "target", scratch))
