"""The model part of an inspection: target, draft, their fit, and what each node budget costs on this host."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.compat import check_configs
from tasks.compat_view import TensorTable
from tasks.inspecting import memory, roofline
from tasks.inspecting.measured import measured_for
from tasks.inspecting.model_config import FILES, LARGEST, ModelFacts, ModelUnreadable, chat_template, read_model
from tasks.inspecting.probe import Ask, RemoteFiles, Runs, read_all
from tasks.inspecting.serving import Serving

if TYPE_CHECKING:
    from tasks.inspecting.inspection import Scope

DEFAULT_CONTEXT = 32768
DEFAULT_REQUESTS = 48  # what SGLang sets for DFLASH when nothing is given
CPU_STATIC_SHARE = 0.5


@dataclass(frozen=True)
class Found:
    """A model and the files of its folder that the compatibility library looks at."""

    facts: ModelFacts
    files: RemoteFiles


Models = tuple[ModelFacts | None, ModelFacts | None, dict[str, Any]]


def asks(scope: Scope, serving: Serving | None) -> dict[str, Ask]:
    """What is read of target and draft, as far as the service or hosts.yaml names them."""
    named = {
        "target": (serving and serving.option("model_path", "model")) or scope.target,
        "draft": (serving and serving.option("speculative_draft_model_path")) or scope.draft,
    }
    folder = (serving and serving.cwd) or "/"
    return {
        role: Ask(
            posixpath.join(folder, str(path)), FILES, listing=True, model=True, repository=str(path),
            hubs=_hubs(serving),
        )
        for role, path in named.items()
        if path
    }  # fmt: skip


def read(transport: Runs, scope: Scope, serving: Serving | None) -> Models:
    """(target, draft, the contract's `model` object), read now."""
    wanted = asks(scope, serving)
    return judge(wanted, read_all(transport, wanted), serving)


def judge(wanted: Mapping[str, Ask], files: Mapping[str, RemoteFiles], serving: Serving | None) -> Models:
    """(target, draft, the contract's `model` object) from what `asks` asked for. Problems become notes, not errors."""
    notes: list[str] = []
    found = {role: _found(wanted[role], files[role], notes) for role in wanted}
    target, draft = found.get("target"), found.get("draft")
    document = describe(target.facts if target else None, draft.facts if draft else None, notes)
    if target and draft:
        document["compat"] = fit(target, draft, serving)
        measured = measured_for(target.files.weights_sha256, draft.files.weights_sha256)
        document["measured_gain"] = measured.gain if measured else None
        document["measured_on"] = measured.on if measured else None
    return target.facts if target else None, draft.facts if draft else None, document


def read_folder(folder: Path) -> dict[str, Any]:
    """The `model` object of a folder with config.json; {} without one. Raises ModelUnreadable."""
    if not (folder / "config.json").is_file():
        return {}
    texts = {name: (folder / name).read_text(errors="replace") for name in FILES if (folder / name).is_file()}
    listing = [(item.name, item.stat().st_size) for item in folder.iterdir() if item.is_file()]
    return describe(read_model(str(folder), texts, listing), None, [])


def describe(target: ModelFacts | None, draft: ModelFacts | None, notes: list[str]) -> dict[str, Any]:
    facts = {"target": target.to_json() if target else None, "draft": draft.to_json() if draft else None}
    return {**facts, "notes": notes}


def fit(target: Found, draft: Found, serving: Serving | None) -> dict[str, Any]:
    """The verdict of the compatibility library: {ok, problems[], notes[], findings[], facts}."""
    service = {**serving.given(), **serving.resolved} if serving else None

    def tensors(model: Found) -> TensorTable | None:
        return {name: (dtype, tuple(shape)) for name, (dtype, shape) in model.files.tensors.items()} or None

    report = check_configs(
        target.facts.raw,
        draft.facts.raw,
        target_tensors=tensors(target),
        draft_tensors=tensors(draft),
        target_tokenizer=target.files.tokenizer,
        draft_tokenizer=draft.files.tokenizer,
        chat_template=chat_template(target.files.texts, target.facts.path) or None,
        service=service,
    )
    return report.to_json()


def _found(ask: Ask, files: RemoteFiles, notes: list[str]) -> Found | None:
    if not files.exists:
        repository = ask.repository.count("/") == 1 and ask.repository != ask.root
        named = "is in no download cache of the service" if repository else "is not there"
        notes.append(f"{ask.repository} {named}, or this login may not see it")
        return None
    try:
        return Found(read_model(files.root, files.texts, files.listing), files)
    except ModelUnreadable as error:
        notes.append(str(error))
        return None


def _hubs(serving: Serving | None) -> list[str]:
    """Download caches in the order in which the service's own library looks."""
    env = (serving.env if serving else None) or {}
    named = [env["HF_HUB_CACHE"]] if env.get("HF_HUB_CACHE") else []
    named += [posixpath.join(env["HF_HOME"], "hub")] if env.get("HF_HOME") else []
    home = env.get("HOME", "/root")
    return [*named, posixpath.join(home, ".cache", "huggingface", "hub")]


def figures(
    scope: Scope,
    serving: Serving | None,
    hardware: Mapping[str, Any],
    target: ModelFacts | None,
    draft: ModelFacts | None,
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """(setting, budgets, predictions); empty lists when there is no target to calculate with."""
    if target is None:
        return {}, [], []
    setting = setting_of(scope, serving, hardware, target, draft)
    rows = [row.to_json() for row in memory.budgets(target, draft, setting)]
    gpus = hardware["gpu"]["gpus"]
    device = roofline.device_of(gpus[0]["name"]) if gpus and not gpus[0]["mig"] else None
    predicted = roofline.predict(target, draft, device, setting, memory.BUDGETS) if device else []
    return {**vars(setting), "memory": _memory_kind(hardware)}, rows, [p.to_json() for p in predicted]


def setting_of(
    scope: Scope, serving: Serving | None, hardware: Mapping[str, Any], target: ModelFacts, draft: ModelFacts | None
) -> memory.Setting:
    """How the service runs now; the engine's defaults where nothing is given."""

    def number(*names: str, default: float) -> float:
        """What the service says, if that is a number that can be: others are its own problem when it starts."""
        value = serving.option(*names) if serving else None
        try:
            found = default if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            return default
        return found if 0 < found <= LARGEST else default

    gpus = hardware["gpu"]["gpus"]
    system = hardware["system"]
    on_cpu = not gpus
    context = min(target.max_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    backend = serving.option("prefill_attention_backend", "attention_backend") if serving else None
    kv_dtype = str((serving.option("kv_cache_dtype") if serving else None) or "auto")
    return memory.Setting(
        gpu_bytes=min((g["memory_bytes"] for g in gpus), default=system["memory_bytes"]),
        tp=int(number("tp_size", "tensor_parallel_size", "tp", default=scope.tp)),
        running_requests=int(number("max_running_requests", default=DEFAULT_REQUESTS)),
        context=int(number("context_length", default=context)),
        block=int((draft.block if draft else None) or number("speculative_num_draft_tokens", default=16)),
        fraction_static=CPU_STATIC_SHARE if on_cpu else number("mem_fraction_static", default=0.85),
        kv_dtype=target.dtype if kv_dtype == "auto" else kv_dtype,
        max_tokens=int(number("max_total_tokens", default=0)) or None,
        mask_backend=str(backend or ("intel_amx" if on_cpu else "triton")),
    )


def _memory_kind(hardware: Mapping[str, Any]) -> str:
    return "gpu" if hardware["gpu"]["gpus"] else "host"
