"""How much the load generator itself can take: `python -m tests.bench.selfbench [--streams N] [--seconds S]`.

A server in a process of its own sends small chunks on every stream at a fixed rate; the client counts what it
reads and how late its own event loop runs. Prints the figures and asserts nothing: speed is not a unit test.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import resource
import time
from multiprocessing.connection import Connection

from orchestrator.bench.load import Level, Target, load
from orchestrator.openai.records import Api

CHUNK = b'data: {"choices":[{"index":0,"text":"abc","finish_reason":null}]}\n\n'
TAIL = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'


def frame(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


async def serve(port_out: Connection, chunks: int, period_s: float, in_phase: bool) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.0 if in_phase else random.random() * period_s)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n")
        writer.write(b"connection: close\r\n\r\n")
        due = time.perf_counter()
        body = frame(CHUNK)
        for _ in range(chunks):
            writer.write(body)
            due += period_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        writer.write(frame(TAIL % chunks) + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0, backlog=1024)
    port_out.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def run_server(port_out: Connection, chunks: int, period_s: float, in_phase: bool) -> None:
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
        result = asyncio.run(load(target, [("p", "hi")], streams, Level(concurrency=streams)))
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
        "client_cpu_share": busy_s / result.summary.wall_s,
        "client_cpu_us_per_chunk": busy_s / read * 1e6,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, nargs="+", default=[5_000, 10_000, 12_500], help="chunks/s in all")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--in-phase", action="store_true", help="all streams send at the same moments, as one batch")
    options = parser.parse_args()
    for rate in options.rate:
        figures = measure(options.streams, rate, options.seconds, options.in_phase)
        print("  ".join(f"{name} {value:,.4g}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
