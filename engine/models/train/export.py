"""Checkpoints in Hugging Face layout, and archives that survive a transfer in parts."""

from __future__ import annotations

import json
import lzma
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from .modules import ParameterTable
from .tokenizer import save_tokenizer

XZ_BLOCK = 4 << 20


def save_checkpoint(folder: Path, config: dict[str, Any], model: ParameterTable, tokenizer_json: str | None) -> None:
    """Write config.json, model.safetensors and, for a target, the tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(model.checkpoint(), folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer_json is not None:
        save_tokenizer(tokenizer_json, folder)


def archive(folder: Path, out: Path, part_bytes: int) -> list[str]:
    """Pack ``folder`` as OUT/NAME.tar.xz[.partN], each part below ``part_bytes``; ``cat`` joins them."""
    out.mkdir(parents=True, exist_ok=True)
    plain = out / f"{folder.name}.tar"
    with tarfile.open(plain, "w") as tar:
        tar.add(folder, arcname=folder.name)
    data = plain.read_bytes()
    plain.unlink()
    # bf16 weights: the high bytes compress, and byte pairs align on two.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1}]
    with ThreadPoolExecutor() as pool:
        blocks = pool.map(
            lambda i: lzma.compress(data[i : i + XZ_BLOCK], format=lzma.FORMAT_XZ, filters=filters),
            range(0, len(data), XZ_BLOCK),
        )
        packed = b"".join(blocks)
    pieces = [packed[i : i + part_bytes] for i in range(0, len(packed), part_bytes)]
    names = [
        f"{folder.name}.tar.xz" if len(pieces) == 1 else f"{folder.name}.tar.xz.part{i}" for i in range(len(pieces))
    ]
    for name, piece in zip(names, pieces, strict=True):
        (out / name).write_bytes(piece)
    return names
