"""Text that the target itself writes: a draft that learns from it predicts what it will have to predict."""

from __future__ import annotations

from pathlib import Path

import torch
from baselines.environment import hide_broken_torchvision

from .dataset import windows
from .loop import say
from .spec import EOS_ID

GENERATED = 256
PROMPT_LENGTHS = (32, 128, 384)  # short ones too: questions are short
ROW = max(PROMPT_LENGTHS) + GENERATED


def write_rows(
    target_folder: Path, stream: torch.Tensor, per_length: int, generator: torch.Generator, batch: int, scale: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy continuations of corpus prompts, from the saved target.

    Returns rows int16 [N, ROW] = prompt, generated text, then corpus text as filler, and the prompts' lengths [N].
    ``scale`` divides every length (for smoke tests).
    """
    hide_broken_torchvision()
    from transformers import AutoModelForCausalLM

    device = stream.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=dtype).to(device).eval()
    model.generation_config.eos_token_id = None  # the rows have one length
    rows, lengths = [], []
    for length in (n // scale for n in PROMPT_LENGTHS):
        for start in range(0, per_length, batch):
            row = windows(stream, min(batch, per_length - start), ROW // scale, generator)
            end = length + GENERATED // scale
            row[:, :end] = _continue(model, row[:, :length], GENERATED // scale)
            rows.append(row.to(torch.int16))
            lengths.append(torch.full((row.shape[0],), length, device=device))
        say(f"rollouts: {per_length} of {GENERATED // scale} tokens after prompts of {length}")
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()  # generating kept tens of gigabytes, which another pair's process may need
    return torch.cat(rows), torch.cat(lengths)


@torch.no_grad()
def _continue(model: torch.nn.Module, prompts: torch.Tensor, count: int) -> torch.Tensor:
    return model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=EOS_ID,
    )
