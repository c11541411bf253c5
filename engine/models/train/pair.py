"""Train one pair from data to checkpoints and provenance."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from . import layers, loop, rollout
from .dataset import Dataset, windows
from .export import save_checkpoint
from .modules import Draft, Target, propose
from .spec import BLOCK_SIZE, PairSpec, draft_config, target_config

EVALUATED = 64  # windows of held-out text
TARGET_ROW = 768  # tokens of a training window of the target


@dataclass(frozen=True)
class Settings:
    """Sizes and time boxes of one run.

    ``target_steps`` ends the target's training early: one that learns its text by heart writes what no draft can foresee.
    ``decay``: the draft's loss at proposal i weighs exp(-(i - 1) / decay). ``scale`` divides lengths for smoke tests.
    """

    target_seconds: float
    draft_seconds: float
    steps: int = 10**9
    target_steps: int = 10**9
    batch: int = 64
    draft_batch: int = 48
    anchors: int = 32
    rollouts: int = 8192
    rollout_batch: int = 8192
    target_lr: float = 3e-3
    draft_lr: float = 1.5e-3
    decay: float = 4.0
    seed: int = 1
    scale: int = 1


def train_pair(spec: PairSpec, data: Dataset, folder: Path, settings: Settings, device: torch.device) -> dict:
    """Write FOLDER/{target,draft,provenance.json}; stages whose output is there already are not repeated."""
    data = data.to(device)
    amp = torch.bfloat16 if device.type == "cuda" else torch.float32
    provenance = _provenance(spec, data, settings, device)
    target = Target(spec, torch.Generator().manual_seed(settings.seed)).to(device)
    provenance["target"] = _stage(
        folder / "target", provenance, lambda: _train_target(target, data, folder, settings, amp), target
    )
    for parameter in target.parameters():
        parameter.requires_grad_(False)
    provenance["held_out_loss_nats"] = held_out_loss(target, data, settings)
    loop.say(f"{spec.name}: held-out loss {provenance['held_out_loss_nats']} nats a token")
    draft = Draft(spec, torch.Generator().manual_seed(settings.seed + 1)).to(device)
    provenance["draft"] = _stage(
        folder / "draft", provenance, lambda: _train_draft(target, draft, data, folder, settings, amp), draft
    )
    provenance["draft_top1_on_held_out_text"] = draft_accuracy(target, draft, data, settings)
    provenance["finished"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=1), encoding="utf-8")
    return provenance


def _provenance(spec: PairSpec, data: Dataset, settings: Settings, device: torch.device) -> dict:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "pair": spec.describe(),
        "settings": asdict(settings),
        "data": data.facts,
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tokenizer_sha256": hashlib.sha256(data.tokenizer_json.encode()).hexdigest(),
        "licence": "weights: this project's licence; trained on text under the PSF licence, version 2",
    }


def _stage(folder: Path, provenance: dict, run, model) -> dict:
    """Run a stage, or load its checkpoint when the same data and settings produced it before."""
    from safetensors.torch import load_file

    key = hashlib.sha256(
        json.dumps([provenance["pair"], provenance["settings"], provenance["data"]["sha256"]], sort_keys=True).encode()
    ).hexdigest()
    record_file = folder / "training.json"
    if record_file.exists():
        record = json.loads(record_file.read_text(encoding="utf-8"))
        if record["key"] == key:
            with torch.no_grad():
                for name, value in load_file(folder / "model.safetensors").items():
                    model.weight(name).copy_(value.float())
            loop.say(f"{folder}: already trained, not repeated")
            return record
    record = asdict(run()) | {"key": key, "parameters": sum(p.numel() for p in model.parameters())}
    record_file.write_text(json.dumps(record), encoding="utf-8")
    return record


def _train_target(target: Target, data: Dataset, folder: Path, settings: Settings, amp: torch.dtype) -> loop.Record:
    generator = torch.Generator(device=data.train.device).manual_seed(settings.seed + 2)
    length = TARGET_ROW // settings.scale

    def loss() -> torch.Tensor:
        ids = windows(data.train, settings.batch, length + 1, generator)
        hidden, _ = target(ids[:, :-1], amp)
        return layers.head_loss(hidden, target.head, ids[:, 1:]).mean()

    budget = loop.Budget(
        settings.target_seconds,
        settings.target_lr,
        min(settings.steps, settings.target_steps),
        tokens_per_step=settings.batch * length,
    )
    record = loop.train(f"{target.spec.name} target", target, loss, budget, generator, folder / "target.ckpt")
    save_checkpoint(folder / "target", target_config(target.spec), target, data.tokenizer_json)
    return record


def _train_draft(
    target: Target, draft: Draft, data: Dataset, folder: Path, settings: Settings, amp: torch.dtype
) -> loop.Record:
    generator = torch.Generator(device=data.train.device).manual_seed(settings.seed + 3)
    rows, prompts = rollout.write_rows(
        folder / "target", data.train, settings.rollouts, generator, settings.rollout_batch, settings.scale
    )
    features = _tapped_features(target, rows, amp)

    def loss() -> torch.Tensor:
        pick = torch.randint(0, rows.shape[0], (settings.draft_batch,), generator=generator, device=rows.device)
        anchors = _anchors(prompts[pick], settings, generator)
        return _block_loss(target, draft, features[pick], rows[pick].long(), anchors, amp, settings.decay)

    budget = loop.Budget(
        settings.draft_seconds,
        settings.draft_lr,
        settings.steps,
        tokens_per_step=settings.draft_batch * settings.anchors * BLOCK_SIZE,
    )
    record = loop.train(f"{target.spec.name} draft", draft, loss, budget, generator, folder / "draft.ckpt")
    save_checkpoint(folder / "draft", draft_config(target.spec), draft, None)
    return record


@torch.no_grad()
def _tapped_features(target: Target, rows: torch.Tensor, amp: torch.dtype, batch: int = 256) -> torch.Tensor:
    """The target's tapped hidden states of every row [N, T, taps * H]: the target is frozen, so once is enough."""
    return torch.cat([target(part.long(), amp)[1] for part in rows.split(batch)])


def _anchors(prompts: torch.Tensor, settings: Settings, generator: torch.Generator) -> torch.Tensor:
    """Three quarters of the anchors lie in the target's own text, the others anywhere in the row."""
    shape = (prompts.shape[0], settings.anchors)
    device = prompts.device
    inside = (
        prompts[:, None]
        - 1
        + torch.randint(
            0, rollout.GENERATED // settings.scale - BLOCK_SIZE + 1, shape, generator=generator, device=device
        )
    )
    anywhere = torch.randint(4, rollout.ROW // settings.scale - BLOCK_SIZE, shape, generator=generator, device=device)
    return torch.where(torch.arange(settings.anchors, device=device) % 4 == 3, anywhere, inside)


def _block_loss(
    target: Target,
    draft: Draft,
    features: torch.Tensor,
    ids: torch.Tensor,
    anchors: torch.Tensor,
    amp: torch.dtype,
    decay: float,
) -> torch.Tensor:
    """Cross-entropy of the 15 proposals; nearer ones weigh more, since a miss hides everything behind it."""
    offsets = torch.arange(1, BLOCK_SIZE, device=ids.device)
    labels = ids.gather(1, (anchors[..., None] + offsets).flatten(1)).view(*anchors.shape, BLOCK_SIZE - 1)
    weights = torch.exp(-(offsets.float() - 1) / decay)
    losses = layers.head_loss(propose(target, draft, features, ids, anchors, amp), target.head, labels)
    return (losses * weights).sum() / (weights.sum() * anchors.numel())


@torch.no_grad()
def held_out_loss(target: Target, data: Dataset, settings: Settings) -> float:
    """Mean nats per token on documents that training never saw, float32."""
    count = EVALUATED // settings.scale
    length = min(TARGET_ROW // settings.scale, data.held_out.numel() - 1)
    starts = torch.linspace(0, data.held_out.numel() - length - 1, count).long().tolist()
    total = 0.0
    for start in starts:
        ids = data.held_out[start : start + length + 1].long()[None]
        hidden, _ = target(ids[:, :-1], torch.float32)
        total += layers.head_loss(hidden, target.head, ids[:, 1:]).mean().item()
    return round(total / count, 4)


@torch.no_grad()
def draft_accuracy(target: Target, draft: Draft, data: Dataset, settings: Settings) -> list[float]:
    """How often each of the 15 proposals is the next held-out token, float32."""
    count = EVALUATED // settings.scale
    generator = torch.Generator(device=data.held_out.device).manual_seed(settings.seed + 4)
    length = min(TARGET_ROW // settings.scale, data.held_out.numel() - 1)
    offsets = torch.arange(1, BLOCK_SIZE, device=data.held_out.device)
    hits = torch.zeros(BLOCK_SIZE - 1)
    for _ in range(count):
        ids = windows(data.held_out, 1, length, generator)
        _, features = target(ids, torch.float32)
        anchors = torch.randint(8, length - BLOCK_SIZE, (1, 64), generator=generator, device=ids.device)
        logits = layers.linear(propose(target, draft, features, ids, anchors, torch.float32), target.head)
        labels = ids[0][anchors[0][:, None] + offsets]
        hits += (logits.argmax(-1)[0] == labels).float().mean(0).cpu()
    return [round(x, 4) for x in (hits / count).tolist()]
