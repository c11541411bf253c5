"""Blocking client of one server: OpenAI endpoints and SGLang's own, over one kept connection."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from orchestrator.errors import HostError, UsageError
from orchestrator.openai.endpoint import Endpoint, endpoint_of
from orchestrator.openai.metrics_text import read_metrics
from orchestrator.openai.records import UNEXPECTED, Api, Assembler, Completion
from orchestrator.openai.sse import SseSplitter

Json = dict[str, Any]
UNAUTHORIZED = 401


class KeyRefused(UsageError):
    """The server asks for a key and was given none, or another one."""


def payload_for(
    api: Api,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    max_tokens: int,
    *,
    model: str = "default",
    temperature: float = 0.0,
    seed: int | None = None,
    ignore_eos: bool = True,
    stream: bool = True,
) -> Json:
    """The request body for one prompt: text, token ids (native and completions) or messages (chat)."""
    if api is Api.NATIVE:
        sampling: Json = {
            "temperature": temperature,
            "max_new_tokens": max_tokens,
            "ignore_eos": ignore_eos,
        }
        if seed is not None:
            sampling["sampling_seed"] = seed
        key = "text" if isinstance(prompt, str) else "input_ids"
        return {key: prompt, "sampling_params": sampling, "stream": stream}
    body: Json = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "ignore_eos": ignore_eos,
        "stream": stream,
    }
    if seed is not None:
        body["seed"] = seed
    if stream:
        body["stream_options"] = {"include_usage": True}
    if api is Api.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    else:
        body["prompt"] = prompt
    return body


class Client:
    """Use as a context manager. The paths of this class start at the server's root.

    A refused key raises KeyRefused where the endpoint says who gives it; otherwise it is an answer like any other.
    """

    def __init__(
        self, server: Endpoint | str, timeout_s: float = 120.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.endpoint = endpoint_of(server)
        self.base_url = self.endpoint.root
        self._clock = clock
        self._http = httpx.Client(
            base_url=self.base_url, headers=self.endpoint.headers, timeout=timeout_s, trust_env=False
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One request, whatever its status; HostError when there is no answer at all."""
        try:
            return self._known(self._sent(method, path, **kwargs))
        except httpx.HTTPError as exc:
            raise HostError(
                f"{method} {self.base_url}{path} got no answer ({type(exc).__name__}: {exc}); "
                "check that the service runs and that its port is right."
            ) from exc

    def _sent(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """A kept connection may have been given up by the server while it was idle: what changes nothing is asked again."""
        try:
            return self._http.request(method, path, **kwargs)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):  # hung up, or reset in either direction
            if method != "GET":
                raise
            return self._http.request(method, path, **kwargs)

    def _known(self, answer: httpx.Response) -> httpx.Response:
        """The answer, unless it says that our key is not the server's."""
        source = self.endpoint.key_from
        if answer.status_code == UNAUTHORIZED and source:
            does = "refuses the key that was sent" if self.endpoint.api_key else "asks for a key"
            raise KeyRefused(f"{self.base_url} {does} (HTTP 401): let {source} refer to the key of that server.")
        return answer

    def get_json(self, path: str) -> Json | None:
        """The JSON object at `path`, or None when the server does not offer it."""
        answer = self.request("GET", path)
        if answer.status_code != 200:
            return None
        return _object(answer)

    def models(self) -> list[str]:
        """Ids of the served models; empty when the server does not list them."""
        listed = (self.get_json("/v1/models") or {}).get("data")
        entries = listed if isinstance(listed, list) else []
        return [str(entry["id"]) for entry in entries if isinstance(entry, dict) and entry.get("id")]

    def server_info(self) -> Json:
        """SGLang's configuration and state ({} for another kind of server)."""
        return self.get_json("/server_info") or self.get_json("/get_server_info") or {}

    def alive(self) -> bool:
        """The HTTP front answers (`/health`); says nothing of the model."""
        return self.request("GET", "/health").status_code == 200

    def ready(self) -> bool:
        """The scheduler produced a token for a probe (`/health_generate`)."""
        return self.request("GET", "/health_generate").status_code == 200

    def metrics_text(self) -> str | None:
        """Prometheus text, or None when metrics are off."""
        answer = self.request("GET", "/metrics", follow_redirects=True)
        return answer.text if answer.status_code == 200 else None

    def metrics(self) -> dict[str, float] | None:
        """Sample name -> value summed over labels; None when metrics are off or what is there is something else."""
        return read_metrics(self.metrics_text() or "") or None

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False when refused (the server is busy, or wants an administrator's key)."""
        try:
            return self.request("POST", "/flush_cache").status_code == 200
        except KeyRefused:
            return False

    def tokenize(self, messages: Sequence[Mapping[str, Any]], model: str = "default") -> list[int] | None:
        """Token ids of a conversation under the server's chat template; None when not offered."""
        return self._tokens({"model": model, "messages": messages})

    def token_ids(self, text: str, model: str = "default") -> list[int] | None:
        """Token ids of a text as the server would read it; None when not offered."""
        return self._tokens({"model": model, "prompt": text})

    def _tokens(self, body: Json) -> list[int] | None:
        answer = self.request("POST", "/v1/tokenize", json=body)
        ids = (_object(answer) or {}).get("tokens") if answer.status_code == 200 else None
        if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
            return None
        return ids

    def top_logprobs(self, ids: Sequence[int], count: int = 16) -> dict[int, float] | None:
        """Log-probabilities of the likeliest next tokens after `ids`; None when the server does not tell them."""
        body = payload_for(Api.NATIVE, list(ids), 1, stream=False) | {"return_logprob": True, "top_logprobs_num": count}
        rows = self.complete(Api.NATIVE, body).meta_info.get("output_top_logprobs") or [[]]
        try:
            return {int(token): float(value) for value, token, *_ in rows[0]} or None
        except UNEXPECTED:
            return None

    def preference(
        self, native: str | Sequence[int], prefix: Sequence[int], wanted: int, got: int, model: str = "default"
    ) -> float | None:
        """By how many nats the server prefers one next token to another after a prompt and `prefix`; None: not told."""
        ids = self.token_ids(native, model) if isinstance(native, str) else native
        known = self.top_logprobs([*ids, *prefix]) if ids else None
        return known[wanted] - known[got] if known and wanted in known and got in known else None

    def complete(self, api: Api, body: Json, prompt_id: str = "") -> Completion:
        """Send one request, streamed or not, and return all that came back; errors are in the record."""
        done = Completion(prompt_id=prompt_id, sent_at_s=self._clock())
        assembler = Assembler(api, done)
        try:
            if body.get("stream"):
                self._stream(api, body, assembler)
            else:
                self._whole(api, body, assembler)
        except (httpx.HTTPError, ValueError) as exc:
            done.error = f"{type(exc).__name__}: {exc}"
        done.ended_at_s = self._clock()
        return done

    def _whole(self, api: Api, body: Json, assembler: Assembler) -> None:
        answer = self._known(self._http.post(api.value, json=body))
        assembler.completion.status = answer.status_code
        if answer.status_code == 200:
            assembler.whole(answer.content.decode("utf-8", "replace"), self._clock())
        else:
            assembler.completion.error = answer.text[:300]

    def _stream(self, api: Api, body: Json, assembler: Assembler) -> None:
        splitter = SseSplitter()
        with self._http.stream("POST", api.value, json=body) as answer:
            self._known(answer)
            assembler.completion.status = answer.status_code
            if answer.status_code != 200:
                assembler.completion.error = answer.read().decode("utf-8", "replace")[:300]
                return
            for chunk in answer.iter_raw():
                now = self._clock()
                assembler.received(chunk)
                for data in splitter.feed(chunk):
                    assembler.event(data, now)
            assembler.ended()

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        rid: str | None = None,
    ) -> Completion:
        """One native, unstreamed request that ignores end-of-sequence: for comparing token ids.

        rid: the name under which the server knows the request (its trace carries it); its own choice otherwise.
        """
        body = payload_for(Api.NATIVE, prompt, max_tokens, temperature=temperature, seed=seed, stream=False)
        if rid is not None:
            body["rid"] = rid
        return self.complete(Api.NATIVE, body)


def _object(answer: httpx.Response) -> Json | None:
    """The JSON object that an answer holds; None when it holds something else."""
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def server_identity(info: Mapping[str, Any]) -> str:
    """A fingerprint that changes when the server process is restarted, from `Client.server_info`.

    SGLang draws a new random seed at each start unless one is set, and 0.5.20+ reports start-up times;
    with a fixed seed on an older version a restart is invisible here, so give the arm a process id instead.
    """
    told = info.get("internal_states")
    states = told if isinstance(told, list) else []
    facts = {
        "seed": info.get("random_seed"),
        "startup": [state.get("startup_time") for state in states if isinstance(state, Mapping)],
        "front": info.get("startup_time"),
        "version": info.get("version"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def graphs_on(info: Mapping[str, Any]) -> bool | None:
    """Whether decode runs in CUDA graphs; None on a device without them or when the server does not say."""
    if str(info.get("device", "cuda")) == "cpu":
        return None
    config = info.get("cuda_graph_config")
    if isinstance(config, Mapping) and isinstance(config.get("decode"), Mapping):
        return str(config["decode"].get("backend", "")).lower() not in ("disabled", "none", "")
    if "disable_cuda_graph" in info:
        return not info["disable_cuda_graph"]
    return None


# What must be the same in both arms, besides what CUDA graphs and the algorithm say for themselves.
_LIKE = (
    "version", "model_path", "speculative_draft_model_path", "dtype", "quantization", "kv_cache_dtype",
    "attention_backend", "tp_size", "page_size", "enable_deterministic_inference",
)  # fmt: skip


def engine_settings(info: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a server that a fair comparison holds fixed; of paths only the last part, as text."""
    return {key: str(info[key]).rstrip("/").rsplit("/", 1)[-1] for key in _LIKE if info.get(key) is not None}
