"""Times of GPU work: replays of a CUDA graph, with the inputs rotated so that no cache is warmer than in a model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch


def clock(steps: Sequence[Callable[[], object]], replays: int = 8) -> Callable[[], float]:
    """Captures ``steps`` (called in turn) in one graph; each call of the result measures microseconds per step."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for step in steps:  # compiles and warms up
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    graph.replay()
    torch.cuda.synchronize()

    def measure() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / replays / len(steps)

    return measure


def graph_time(steps: Sequence[Callable[[], object]], replays: int = 8, repeats: int = 7) -> float:
    """Median microseconds per step of ``steps`` (called in turn) inside one captured graph."""
    measure = clock(steps, replays)
    return statistics.median(measure() for _ in range(repeats))


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, read and written bytes counted."""
    source = torch.empty(1 << 30, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    microseconds = graph_time([lambda: target.copy_(source)], replays=3, repeats=3)
    return 2 * source.numel() * 4 / (microseconds * 1e-6)
