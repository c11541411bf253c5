"""Any causal language model of Transformers as the oracle's target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .environment import hide_broken_torchvision
from .errors import BaselineError

Tensor = torch.Tensor


class TargetModel:
    """Greedy text, tapped hidden states, embeddings and head of a target; batches are padded on the left."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        hide_broken_torchvision()
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        # Its bars and notes on fast kernels would drown this tool's own progress.
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        if not (folder / "config.json").is_file():
            raise BaselineError(f"{folder}/config.json does not exist: name the folder of the target model.")
        try:
            self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError) as error:
            first_line = str(error).splitlines()[0]
            raise BaselineError(f"Transformers cannot load {folder}: {first_line}") from error
        self.device = device
        text_config = self.model.config.get_text_config()
        self.layers: int = text_config.num_hidden_layers
        self.vocab: int = text_config.vocab_size
        self.max_positions: int = getattr(text_config, "max_position_embeddings", 1 << 30)
        # Every prompt gets the same number of tokens, whether or not the text would have ended.
        self.model.generation_config.eos_token_id = None

    @torch.no_grad()
    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """``count`` greedy tokens after each prompt, with the model's own cache."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        out = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        return out[:, longest:].tolist()

    @torch.no_grad()
    def read(self, ids: Sequence[int], taps: Sequence[int], first_logit: int) -> tuple[Tensor, Tensor]:
        """One forward over ``ids``: tapped features [T, taps * H] and logits [T - first_logit, V] in float32."""
        if max(taps) >= self.layers - 1 or min(taps) < 0:
            raise BaselineError(
                f"The draft taps target layers {list(taps)}, but this target has {self.layers}: the draft belongs to another."
            )
        row = torch.tensor([list(ids)], device=self.device)
        out = self.model(row, output_hidden_states=True, use_cache=False, logits_to_keep=row.shape[1] - first_logit)
        # hidden_states[0] is the embedding, so a layer's output is one further on.
        features = torch.cat([out.hidden_states[tap + 1][0] for tap in taps], -1)
        return features, out.logits[0].float()

    @torch.no_grad()
    def next_tokens(self, rows: Tensor) -> Tensor:
        """Greedy next token at every position of ``rows`` [N, T] -> [N, T]; a sequential pass without a cache."""
        return self.model(rows.to(self.device), use_cache=False).logits.argmax(-1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(ids.to(self.device))

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of draft hidden states; through the module, so that a quantised head works too."""
        return self.model.get_output_embeddings()(hidden).float()
