"""How much the load generator itself can take: `python -m tests.bench.selfbench [--streams N] [--seconds S]`.

A server in a process of its own sends small chunks on every stream at a fixed rate; the client counts what it
reads and how late its own event loop runs (and how much of that it computed itself, which other programs on the
machine do not change). Prints medians and asserts nothing: speed is not a unit test.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import resource
import statistics
import time
from multiprocessing.connection import Connection

from orchestrator.bench.load import Level, Target, run_load
from orchestrator.openai.records import Api

CHUNK = b'data: {"choices":[{"index":0,"text":"abc","finish_reason":null}]}\n\n'
TAIL = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'


PACE_S = 0.001  # how often the server looks which streams are due


def frame(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


class Stream:
    """One open answer: what is still to be sent, and when the next chunk is due."""

    def __init__(self, writer: asyncio.StreamWriter, chunks: int, due: float) -> None:
        self.writer, self.left, self.due = writer, chunks, due


async def serve(port_out: Connection, chunks: int, period_s: float, in_phase: bool) -> None:
    """All streams are served by one pacing task, which costs less than a timer per stream and chunk."""
    streams: list[Stream] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n")
        writer.write(b"connection: close\r\n\r\n")
        now = time.perf_counter()
        first = (now // period_s + 1) * period_s if in_phase else now + random.random() * period_s
        streams.append(Stream(writer, chunks, first))

    server = await asyncio.start_server(one, "127.0.0.1", 0, backlog=1024)
    port_out.send(server.sockets[0].getsockname()[1])
    body, tail = frame(CHUNK), frame(TAIL % chunks) + b"0\r\n\r\n"
    while True:
        now = time.perf_counter()
        for stream in streams:
            if stream.due <= now:
                stream.writer.write(body if stream.left else tail)
                stream.due += period_s
                stream.left -= 1
                if stream.left < 0:
                    stream.writer.close()
        streams[:] = [stream for stream in streams if stream.left >= 0]
        await asyncio.sleep(PACE_S)


def on_core(number: int) -> None:
    """Keep this process on one core of those it may use; both halves share it where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def run_server(port_out: Connection, chunks: int, period_s: float, in_phase: bool) -> None:
    on_core(1)
    asyncio.run(serve(port_out, chunks, period_s, in_phase))


def measure(streams: int, rate: float, seconds: float, in_phase: bool = False) -> dict[str, float]:
    chunks = round(rate * seconds / streams)
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=run_server, args=(there, chunks, streams / rate, in_phase), daemon=True
    )
    server.start()
    try:
        target = Target(f"http://127.0.0.1:{here.recv()}", api=Api.COMPLETIONS, max_tokens=chunks)
        cpu = resource.getrusage(resource.RUSAGE_SELF)
        result = run_load(target, [("p", "hi")], streams, Level(concurrency=streams))
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        server.terminate()
        server.join()
    read = sum(len(c.deliveries) for c in result.completions)
    busy_s = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return {
        "streams": streams,
        "complete": result.summary.requests - result.summary.failed,
        "chunks_per_s_sent": rate,
        "chunks_per_s_read": read / result.summary.wall_s,
        "client_delay_p99_ms": (result.client_delay_p99_s or 0.0) * 1e3,
        "client_own_delay_p99_ms": (result.client_own_delay_p99_s or 0.0) * 1e3,
        "client_cpu_share": busy_s / result.summary.wall_s,
        "client_cpu_us_per_chunk": busy_s / read * 1e6,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, nargs="+", default=[5_000, 10_000, 12_500], help="chunks/s in all")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3, help="each rate so many times; the medians are printed")
    parser.add_argument("--in-phase", action="store_true", help="all streams send at the same moments, as one batch")
    options = parser.parse_args()
    on_core(0)
    for rate in options.rate:
        rounds = [
            measure(options.streams, rate, options.seconds, options.in_phase) for _ in range(max(1, options.rounds))
        ]
        medians = {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
        print("  ".join(f"{name} {value:,.4g}" for name, value in medians.items()), flush=True)


if __name__ == "__main__":
    main()
