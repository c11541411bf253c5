"""Corpus to token ids on disk, and random windows of them on the device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import corpus, tokenizer
from .spec import EOS_ID

TOKENIZER_SAMPLE_CHARS = 12_000_000


@dataclass
class Dataset:
    """Token streams (int16 tensors, documents closed by the end token), the tokenizer's JSON, the data's facts."""

    train: torch.Tensor
    held_out: torch.Tensor
    tokenizer_json: str
    facts: dict

    def to(self, device: torch.device) -> Dataset:
        return Dataset(self.train.to(device), self.held_out.to(device), self.tokenizer_json, self.facts)


def prepare(folder: Path, max_chars: int | None = None) -> None:
    """Collect the text, train the tokenizer and write FOLDER/{data.npz,tokenizer.json,data.json}."""
    documents = corpus.library_documents()
    if max_chars:
        documents = _first_chars(documents, max_chars)
    documents += corpus.chat_documents(documents)
    bpe = tokenizer.train_tokenizer(_tokenizer_sample(documents))
    streams = {held: _encode(bpe, [d.text for d in documents if d.held_out is held]) for held in (False, True)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "data.npz", train=streams[False], held_out=streams[True])
    (folder / "tokenizer.json").write_text(bpe.to_str(), encoding="utf-8")
    facts = {
        "source": "Python standard library sources and documentation (PSF licence, version 2)",
        "documents": len(documents),
        "held_out_documents": sum(d.held_out for d in documents),
        "chat_documents": sum(d.source == "chat" for d in documents),
        "sha256": corpus.corpus_hash(documents),
        "train_tokens": int(streams[False].size),
        "held_out_tokens": int(streams[True].size),
        "chars_per_token": round(sum(len(d.text) for d in documents) / sum(s.size for s in streams.values()), 3),
    }
    (folder / "data.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def load(folder: Path) -> Dataset:
    """Read what :func:`prepare` wrote."""
    arrays = np.load(folder / "data.npz")
    facts = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    return Dataset(
        torch.from_numpy(arrays["train"]),
        torch.from_numpy(arrays["held_out"]),
        (folder / "tokenizer.json").read_text(encoding="utf-8"),
        facts,
    )


def windows(stream: torch.Tensor, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` random windows of ``length`` tokens, int64 [count, length]."""
    starts = torch.randint(0, stream.numel() - length, (count, 1), generator=generator, device=stream.device)
    return stream[starts + torch.arange(length, device=stream.device)].long()


def _first_chars(documents: list[corpus.Document], limit: int) -> list[corpus.Document]:
    kept, size = [], 0
    for document in documents:
        size += len(document.text)
        if size > limit:
            break
        kept.append(document)
    return kept


def _tokenizer_sample(documents: list[corpus.Document]) -> list[str]:
    """Chat text last in the list would be cut off, so every third document comes first."""
    ordered = documents[::3] + documents[1::3] + documents[2::3]
    return [d.text for d in _first_chars([d for d in ordered if not d.held_out], TOKENIZER_SAMPLE_CHARS)]


def _encode(bpe: tokenizer.Tokenizer, texts: list[str]) -> np.ndarray:
    parts = []
    for start in range(0, len(texts), 512):
        parts += [np.asarray([*e.ids, EOS_ID], dtype=np.int16) for e in bpe.encode_batch(texts[start : start + 512])]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)
