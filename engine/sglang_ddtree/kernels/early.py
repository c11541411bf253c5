"""Beginning early: a kernel's memory on its way before it is needed, and a kernel before the one it follows has ended."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

OVERLAP_FROM = 90  # the compute capability from which a kernel may begin before the last one has ended


@triton.jit
def prefetch(start, N: tl.constexpr):
    """Brings N adjacent elements near, a line of 32 float32 at a time, without waiting for them."""
    lines = (start + tl.arange(0, N // 32) * 32).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1
    )


def can_overlap(tensor: torch.Tensor) -> bool:
    """Whether kernels on this tensor's device can overlap."""
    if not tensor.is_cuda:
        return False
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return major * 10 + minor >= OVERLAP_FROM
