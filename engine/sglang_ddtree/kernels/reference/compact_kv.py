"""Move the accepted rows of a KV pool to the places a chain would have used."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def compact_kv(
    buffers: Sequence[torch.Tensor], loc: torch.Tensor, path: torch.Tensor, commit_lens: torch.Tensor
) -> int:
    """buffers: tensors [slots, ...] changed in place; loc [bs, T] slot of each row; path, commit_lens of ``walk``.

    Copies, for d < commit_lens[b], the content of slot loc[b, path[b, d]] to slot loc[b, d].  Sources are all
    read before any write.  Returns how many rows had to move (0 for a pure spine).
    """
    depth = torch.arange(path.shape[1], device=path.device)[None]
    moves = (depth < commit_lens[:, None]) & (path != depth)
    request, d = moves.nonzero(as_tuple=True)
    if request.numel() == 0:
        return 0
    source = loc[request, path[request, d]].long()
    target = loc[request, d].long()
    for buffer in buffers:
        buffer[target] = buffer[source]
    return int(request.numel())
