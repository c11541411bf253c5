"""One place that knows where configurations keep their values: top level, text_config, dflash_config, rope_parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

TensorTable = dict[str, tuple[str, tuple[int, ...]]]
DEFAULT_BLOCK = 16


class ConfigProblem(ValueError):
    """A value that cannot be what it is; the message names it."""


@dataclass(frozen=True)
class Finding:
    """``message`` says what is wrong, ``fix`` what to do."""

    id: str
    severity: Literal["error", "warning", "hint"]
    message: str
    fix: str

    @property
    def sentence(self) -> str:
        return f"{self.message}; {self.fix}."


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language part of a multimodal configuration, or the configuration itself."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def whole(value: Any, name: str) -> int | None:
    """A whole number or None; anything else is a problem with ``name`` in it."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigProblem(f"{name} is {value!r}, not a whole number")
    return value


def rope_theta(config: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """RoPE's base as (top level, inside rope_parameters or rope_scaling)."""
    text = text_config(config)
    inner = text.get("rope_parameters") or text.get("rope_scaling") or {}
    nested = inner.get("rope_theta") if isinstance(inner, Mapping) else None
    if nested is None and isinstance(inner, Mapping):
        # Per-layer-type parameters: {"full_attention": {"rope_theta": ...}}.
        values = [v.get("rope_theta") for v in inner.values() if isinstance(v, Mapping)]
        nested = next((v for v in values if v is not None), None)
    return text.get("rope_theta"), nested


@dataclass
class PairView:
    """Both configurations with what else is known about the two models."""

    target: dict[str, Any]
    draft: dict[str, Any]
    target_tensors: TensorTable | None = None
    draft_tensors: TensorTable | None = None
    target_tokenizer: Mapping[str, Any] | None = None
    draft_tokenizer: Mapping[str, Any] | None = None
    chat_template: str | None = None
    service: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def target_text(self) -> Mapping[str, Any]:
        return text_config(self.target)

    @cached_property
    def draft_text(self) -> Mapping[str, Any]:
        return text_config(self.draft)

    @cached_property
    def dflash(self) -> Mapping[str, Any]:
        inner = self.draft.get("dflash_config")
        return inner if isinstance(inner, Mapping) else {}

    def draft_value(self, key: str) -> Any:
        """The nested value wins over the top-level one, as in SGLang."""
        return self.dflash.get(key, self.draft.get(key))

    @property
    def block_size(self) -> int | None:
        return whole(self.draft_value("block_size"), "block_size")

    @property
    def mask_token_id(self) -> int | None:
        return whole(self.draft_value("mask_token_id"), "mask_token_id")

    @property
    def target_layers(self) -> int | None:
        return whole(self.target_text.get("num_hidden_layers"), "num_hidden_layers of the target")

    @property
    def draft_layers(self) -> int | None:
        return whole(self.draft_text.get("num_hidden_layers"), "num_hidden_layers of the draft")

    @property
    def taps(self) -> list[int] | None:
        ids = self.draft_value("target_layer_ids")
        if ids is None:
            return None
        if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigProblem(f"target_layer_ids is {ids!r}, not a list of whole numbers")
        return ids

    @property
    def hybrid(self) -> bool:
        kinds = self.target_text.get("layer_types")
        return (isinstance(kinds, list) and "linear_attention" in kinds) or "linear_num_value_heads" in self.target_text

    def facts(self) -> dict[str, Any]:
        """What a deployment takes from the pair; None where a configuration does not say."""
        out: dict[str, Any] = {"hybrid": self.hybrid}
        for name in ("block_size", "mask_token_id", "taps", "target_layers", "draft_layers"):
            try:
                out[name] = getattr(self, name)
            except ConfigProblem:
                out[name] = None
        out |= {
            "vocab_size": self.target_text.get("vocab_size"),
            "hidden_size": self.target_text.get("hidden_size"),
            "tied_head": bool(
                self.target.get("tie_word_embeddings", self.target_text.get("tie_word_embeddings", False))
            ),
            "draft_window": self.draft_text.get("sliding_window"),
            "thinking_template": "enable_thinking" in (self.chat_template or ""),
        }
        return out


Rule = Callable[[PairView], Iterator[Finding]]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Add a check to those that every pair goes through."""
    RULES.append(function)
    return function
