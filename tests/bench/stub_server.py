"""A scripted stand-in for an SGLang server: known latencies, chunking, token counts and faults. Tests only.

In a test's process (`running_stub`), or in one of its own: `stub_server.py --port N --script JSON`. It speaks just enough HTTP on a socket of its own that every byte and every pause is the script's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,🚀é日"
EOS_CONTEXT = 4096


@dataclass
class Script:
    """How the stub behaves. prefill_s, step_s: time before the first token, and per verify step.

    accept: tokens that the verify steps deliver, in turn. split: bytes per write (0 = an event per write).
    chain: what the plugin's metrics say of the spine (0 = no plugin). algorithm, nodes: what the server says of itself.
    token: of the width switch ("" = no switch). gap: nats by which each token of the alphabet is likelier than the next. openai_only: nothing but the OpenAI interface, as a server of somebody's own. fault: see `Stub`; may be changed while the server runs.
    """

    prefill_s: float = 0.0
    step_s: float = 0.0
    accept: tuple[int, ...] = (4, 3, 5)
    split: int = 0
    fault: str = ""
    salt: str = ""
    device: str = "cpu"
    graphs: bool = True
    api_key: str = ""
    version: str = "0.5.20"
    metrics: bool = True
    chat_template: bool = True
    cached_share: float = 0.0
    chain: float = 0.0
    algorithm: str = ""
    nodes: int = 0
    token: str = ""
    gap: float | None = None
    openai_only: bool = False


def output_ids(prompt: str, n: int, salt: str = "") -> list[int]:
    """The stub's deterministic "greedy" output."""
    ids: list[int] = []
    state = hashlib.sha256((salt + prompt).encode()).digest()
    while len(ids) < n:
        ids += [b % len(ALPHABET) for b in state]
        state = hashlib.sha256(state).digest()
    return ids[:n]


def text_of(ids: list[int]) -> str:
    return "".join(ALPHABET[i] for i in ids)


@dataclass
class Stub:
    """The running stub. Faults: http500, no-usage, broken-stream, no-done, short, loop, no-spec, error-event,
    restart (a new identity after each generation), foreign (one more request counted each time), busy,
    hang-up (accepts, then closes), dead-model (alive but never ready), bad-400 (answers 500 to bad requests).
    """

    script: Script
    port: int = 0
    boots: int = 1
    generated: int = 0
    finished: int = 0
    verify_steps: int = 0
    running: int = 0
    flushes: int = 0
    widths: list[Any] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- HTTP -----------------------------------------------------------------------------------------------

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:])}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.script.fault == "hang-up":
            return False
        if self.script.api_key and headers.get("authorization") != f"Bearer {self.script.api_key}":
            self._send(writer, 401, {"error": "wrong key"})
            return True
        if self.script.openai_only and path not in ("/v1/models", "/v1/completions"):
            self._send(writer, 404, {"error": "not found"})
            return True
        if path == "/ddtree/width" and self.script.token:
            self._width(writer, method, raw, allowed=headers.get("x-ddtree-token") == self.script.token)
            return True
        if method == "GET":
            self._get(writer, path)
            return True
        return await self._post(writer, path, raw)

    def _send(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(data)) + data)

    def _width(self, writer: asyncio.StreamWriter, method: str, raw: bytes, allowed: bool) -> None:
        if not allowed:
            self._send(writer, 401, {"error": "token"})
            return
        if method == "PUT":
            self.widths.append(json.loads(raw)["width"])
        now = str(self.widths[-1]) if self.widths else ""
        self._send(writer, 200, {"width": now, "widths": ["chain", "15", "32", "1024"]})

    def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/health":
            self._send(writer, 200, "")
        elif path == "/health_generate":
            self._send(writer, 503 if self.script.fault == "dead-model" else 200, "")
        elif path == "/v1/models":
            self._send(writer, 200, {"data": [{"id": "stub", "max_model_len": EOS_CONTEXT}]})
        elif path == "/server_info":
            self._send(writer, 200, self._info())
        elif path == "/metrics" and self.script.metrics:
            self._send(writer, 200, self._metrics())
        else:
            self._send(writer, 404, {"error": "not found"})

    def _info(self) -> dict[str, Any]:
        return {
            "version": self.script.version,
            "random_seed": self.boots,
            "device": self.script.device,
            "cuda_graph_config": {"decode": {"backend": "full" if self.script.graphs else "disabled"}},
            "internal_states": [{}],
            "speculative_algorithm": self.script.algorithm,
            "speculative_num_draft_tokens": self.script.nodes + 1,
        }

    def _metrics(self) -> str:
        running = self.running + (3 if self.script.fault == "busy" else 0)
        plugin = (
            ("ddtree_accept_length_chain", "gauge", self.script.chain),
            ("ddtree_depth_hits", "gauge", self.verify_steps),
        )
        return self._stages() + "".join(
            f'# TYPE {name} {kind}\n{name}{{model_name="stub"}} {value}\n'
            for name, kind, value in (
                ("sglang:num_requests_total", "counter", self.finished),
                ("sglang:generation_tokens_total", "counter", self.generated),
                ("sglang:spec_verify_calls_total", "counter", self.verify_steps),
                ("sglang:num_running_reqs", "gauge", running),
                ("sglang:num_queue_reqs", "gauge", 0),
                *(plugin if self.script.chain else ()),
            )
        )

    def _stages(self) -> str:
        """Two milliseconds of draft and five of verify per step."""
        name = "ddtree_step_seconds"
        lines = [f"# TYPE {name} summary\n"]
        for stage, seconds in (("draft", 0.002), ("verify", 0.005)):
            lines.append(f'{name}_count{{stage="{stage}"}} {self.verify_steps}\n')
            lines.append(f'{name}_sum{{stage="{stage}"}} {self.verify_steps * seconds}\n')
        return "".join(lines) if self.script.chain else ""

    async def _post(self, writer: asyncio.StreamWriter, path: str, raw: bytes) -> bool:
        if path == "/flush_cache":
            self.flushes += 1
            self._send(writer, 200, "")
            return True
        refused = 500 if self.script.fault == "bad-400" else 400
        try:
            body = json.loads(raw)
        except ValueError:
            self._send(writer, refused, {"error": "not JSON"})
            return True
        if path == "/v1/tokenize":
            words = " ".join(m["content"] for m in body["messages"]) if "messages" in body else body["prompt"]
            self._send(writer, 200, {"tokens": [ord(c) for c in words]})
            return True
        problem = self._problem(path, body)
        if problem:
            self._send(writer, refused, {"error": problem})
            return True
        if self.script.fault == "http500":
            self._send(writer, 500, {"error": "out of memory"})
            return True
        self.seen.append(body)
        return await self._generate(writer, path, body)

    def _problem(self, path: str, body: dict[str, Any]) -> str:
        prompt = self._prompt(body)
        if not isinstance(body.get("max_tokens", 1), int):
            return "max_tokens must be an integer"
        if len(prompt.split()) > EOS_CONTEXT:
            return "the prompt is longer than the context"
        if path.endswith("chat/completions") and not self.script.chat_template:
            return "the model has no chat template"
        return "tools are off" if body.get("tools") else ""

    @staticmethod
    def _prompt(body: dict[str, Any]) -> str:
        if "messages" in body:
            return " ".join(str(m["content"]) for m in body["messages"])
        return str(body.get("text") or body.get("prompt") or body.get("input_ids"))

    # -- generation -----------------------------------------------------------------------------------------

    def _ids(self, body: dict[str, Any], asked: int) -> list[int]:
        sampling = body.get("sampling_params", body)
        salt = self.script.salt
        if sampling.get("temperature"):
            salt += str(sampling.get("seed", sampling.get("sampling_seed", len(self.seen))))
        ids = output_ids(self._prompt(body), asked, salt)
        if self.script.fault == "short":
            return ids[: max(1, asked // 2)]
        return [ids[0], *([1, 2] * asked)][:asked] if self.script.fault == "loop" else ids

    def _steps(self, total: int) -> Iterator[int]:
        """Cumulative tokens after the prefill and after each verify step."""
        have = 1
        yield have
        turn = 0
        while have < total:
            have = min(total, have + self.script.accept[turn % len(self.script.accept)])
            turn += 1
            yield have

    async def _generate(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> bool:
        asked = body.get("sampling_params", {}).get("max_new_tokens") or body.get("max_tokens", 16)
        ids, finish = self._ids(body, asked), "length"
        for stop in body.get("stop") or []:
            at = text_of(ids).find(stop)
            if at >= 0:
                ids, finish = ids[:at], "stop"
        steps = list(self._steps(len(ids)))
        self.running += 1
        try:
            if body.get("stream"):
                return await self._stream(writer, path, body, ids, steps, finish)
            await asyncio.sleep(self.script.prefill_s + self.script.step_s * (len(steps) - 1))
            self._count(ids, steps)
            self._send(writer, 200, self._whole(path, body, ids, steps, finish))
            return True
        finally:
            self.running -= 1

    def _count(self, ids: list[int], steps: list[int]) -> None:
        self.generated += len(ids)
        self.verify_steps += len(steps) - 1
        self.finished += 2 if self.script.fault == "foreign" else 1
        self.boots += self.script.fault == "restart"

    def _meta(self, body: dict[str, Any], tokens: int, steps: int, finish: str | None) -> dict[str, Any]:
        prompt_tokens = max(1, len(self._prompt(body).split()))
        meta: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "cached_tokens": round(self.script.cached_share * prompt_tokens),
            "finish_reason": {"type": finish} if finish else None,
        }
        if self.script.fault != "no-usage":
            meta["completion_tokens"] = tokens
        if finish and self.script.fault != "no-spec":
            meta |= {"spec_verify_ct": steps, "spec_num_correct_drafts": tokens - 1 - steps}
        return meta

    def _usage(self, body: dict[str, Any], tokens: int) -> dict[str, Any]:
        if self.script.fault == "no-usage":
            return {}
        return {"prompt_tokens": max(1, len(self._prompt(body).split())), "completion_tokens": tokens}

    def _whole(self, path: str, body: dict[str, Any], ids: list[int], steps: list[int], finish: str) -> dict[str, Any]:
        if path == "/generate":
            meta = self._meta(body, len(ids), len(steps) - 1, finish)
            if body.get("return_logprob") and self.script.gap is not None:
                meta["output_top_logprobs"] = [[[-self.script.gap * i, i, None] for i in range(len(ALPHABET))]]
            return {"text": text_of(ids), "output_ids": ids, "meta_info": meta}
        text = text_of(ids)
        if body.get("response_format"):
            text, finish = '{"n": 3}', "stop"
        choices = [
            {"index": i, "text": text, "message": {"content": text}, "finish_reason": finish}
            for i in range(body.get("n", 1))
        ]
        return {"choices": choices, "usage": self._usage(body, len(ids))}

    async def _stream(
        self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any], ids: list[int], steps: list[int],
        finish: str,
    ) -> bool:  # fmt: skip
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        async for data in self._events(path, body, ids, steps, finish):
            event = f"data: {data}\n\n".encode()
            size = self.script.split or len(event)
            for at in range(0, len(event), size):
                part = event[at : at + size]
                writer.write(b"%x\r\n" % len(part) + part + b"\r\n")
                await writer.drain()
            if self.script.fault == "broken-stream":
                return False
        self._count(ids, steps)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _events(
        self, path: str, body: dict[str, Any], ids: list[int], steps: list[int], finish: str
    ) -> AsyncIterator[str]:
        before = 0
        for number, have in enumerate(steps):
            await asyncio.sleep(self.script.step_s if number else self.script.prefill_s)
            last = finish if have == len(ids) else None
            if path == "/generate":
                meta = self._meta(body, have, number, last)
                yield json.dumps({"text": text_of(ids[:have]), "output_ids": ids[:have], "meta_info": meta})
            else:
                text = text_of(ids[before:have])
                choice = {"index": 0, "text": text, "delta": {"content": text}, "finish_reason": last}
                yield json.dumps({"choices": [choice]}, ensure_ascii=False)
            before = have
            if self.script.fault == "error-event":
                yield json.dumps({"error": {"message": "the scheduler died"}})
                return
        if path != "/generate" and (body.get("stream_options") or {}).get("include_usage"):
            yield json.dumps({"choices": [], "usage": self._usage(body, len(ids))})
        if self.script.fault != "no-done":
            yield "[DONE]"


def argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


async def serve(script: Script, port: int) -> None:
    """Until the process ends."""
    async with await asyncio.start_server(Stub(script).handle, "127.0.0.1", port, limit=2**22) as server:
        await server.serve_forever()


@contextmanager
def running_stub(script: Script | None = None, kind: type[Stub] = Stub) -> Iterator[Stub]:
    """The stub on a free loopback port, in a thread of its own."""
    stub = kind(script or Script())
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(stub.handle, "127.0.0.1", 0, backlog=512, limit=2**22))
    stub.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


if __name__ == "__main__":
    asyncio.run(serve(Script(**json.loads(argument("--script"))), int(argument("--port"))))
