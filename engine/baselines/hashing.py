"""Identity of models and tokenizers, from their files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .errors import BaselineError

WHOLE_FILE_BYTES = 64 << 20
SAMPLE_BYTES = 1 << 20
SAMPLES = 16
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")


def model_hash(folder: Path) -> str:
    """SHA-256 over the weight files' names, sizes and contents.

    Files above 64 MiB count with their first bytes (the tensor table among them) and 16 samples spread over
    the file: a 50 GB checkpoint is told apart in a second.
    """
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise BaselineError(f"{folder} holds no *.safetensors or *.bin weights: name the folder of the model itself.")
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            if size <= WHOLE_FILE_BYTES:
                digest.update(stream.read())
                continue
            for i in range(SAMPLES + 1):
                stream.seek(i * (size - SAMPLE_BYTES) // SAMPLES)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def tokenizer_hash(folder: Path) -> str:
    """SHA-256 over the tokenizer's vocabulary files."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files:
        raise BaselineError(f"{folder} holds no tokenizer ({', '.join(TOKENIZER_FILES)}): copy it beside the target.")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def folder_name(folder: Path) -> str:
    """Enough of the path for a person: many drafts lie in a folder called draft."""
    return "/".join(folder.resolve().parts[-2:])
