"""The byte-level BPE tokenizer that every pair shares, with its chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .spec import EOS_ID, IM_END_ID, MASK_ID, MAX_POSITIONS, SPECIAL_TOKENS, VOCAB_SIZE

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab: int = VOCAB_SIZE) -> Tokenizer:
    """A BPE over bytes; ids 0..3 are the special tokens of spec.py."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab or tokenizer.token_to_id(SPECIAL_TOKENS[MASK_ID]) != MASK_ID:
        raise ValueError(f"the corpus is too small for a vocabulary of {vocab} tokens; give it more text")
    return tokenizer


def save_tokenizer(tokenizer_json: str, folder: Path) -> None:
    """Write the three files that Transformers and SGLang read beside a target's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[EOS_ID],
        "pad_token": SPECIAL_TOKENS[EOS_ID],
        "mask_token": SPECIAL_TOKENS[MASK_ID],
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generation = {"eos_token_id": [EOS_ID, IM_END_ID], "pad_token_id": EOS_ID, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
