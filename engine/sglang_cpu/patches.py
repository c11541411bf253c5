"""Every change to SGLang's own code that a CPU without AMX needs: one entry per function, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .versions import SUPPORTED


@dataclass(frozen=True)
class Patch:
    """``apply`` changes ``target`` in ``module``, which was just imported, because of ``reason``."""

    module: str
    target: str
    reason: str
    apply: Callable[[ModuleType], None]
    versions: tuple[str, ...] = SUPPORTED


PATCHES: list[Patch] = []


def patch(
    module: str, target: str, reason: str, versions: tuple[str, ...] = SUPPORTED
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorator: list the function as the patch of ``module``'s ``target``."""

    def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
        PATCHES.append(Patch(module, target, reason, function, versions))
        return function

    return add


class _DeviceView:
    """The resolved arguments with another device name, everything else passed through."""

    def __init__(self, view: Any, device: str) -> None:
        self._view, self._device = view, device

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._view, name)
        return self._device if name == "device" and value == "cpu" else value


@patch(
    "sglang.srt.arg_groups.speculative_hook",
    "_handle_dflash",
    "linear DFLASH refuses every device but cuda, npu and xpu although its worker does not care; the overlap "
    "schedule is turned off because a CPU has no streams",
)
def allow_dflash(module: Any) -> None:
    original, view = module._handle_dflash, module.resolving_view

    def handle_dflash(server_args: Any) -> Any:
        module._disable_overlap_schedule_for_cpu(server_args)
        module.resolving_view = lambda args: _DeviceView(view(args), "xpu")
        try:
            return original(server_args)
        finally:
            module.resolving_view = view

    module._handle_dflash = handle_dflash


@patch(
    "sglang.srt.arg_groups.choices",
    "draft attention backends",
    "the draft model must use a CPU backend, and the list of choices names GPU backends only",
)
def allow_draft_backends(module: Any) -> None:
    module.add_draft_attention_backend_choices(["intel_amx", "torch_native"])


@patch(
    "sglang.srt.arg_groups.overrides",
    "_attention_backend_platform_fallbacks",
    "without AMX intel_amx is swapped for torch_native, which has neither tree masks nor a verify pass; "
    "the stand-in kernels need no AMX",
)
def keep_intel_amx(module: Any) -> None:
    module._attention_backend_platform_fallbacks = lambda view: {}


@patch(
    "sglang.srt.speculative.dflash_info",
    "DFlashVerifyInput.tree_topk",
    "intel_amx reads spec_info.tree_topk (1 = chain, no mask) and linear DFLASH's input has none",
)
def chain_by_default(module: Any) -> None:
    module.DFlashVerifyInput.tree_topk = 1


@patch(
    "sglang.srt.speculative.dflash_worker_v2",
    "torch.Tensor.record_stream",
    "the DFLASH worker marks tensors as used by a stream, which CPU tensors refuse",
)
def no_streams(module: Any) -> None:
    import torch

    original = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> Any:
        return None if self.device.type == "cpu" else original(self, stream)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign]


@patch(
    "sglang.srt.model_executor.model_runner",
    "ModelRunner._extend_forward_kwargs",
    "the draft block's embeddings are cast to bfloat16 whatever the model's dtype is",
)
def embeddings_in_model_dtype(module: Any) -> None:
    original = module.ModelRunner._extend_forward_kwargs

    def extend_forward_kwargs(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, forward_batch, *args, **kwargs)
        if forward_batch.input_embeds is not None:
            result["input_embeds"] = forward_batch.input_embeds.to(self.dtype)
        return result

    module.ModelRunner._extend_forward_kwargs = extend_forward_kwargs


def scatter_accepted(
    dst: Any, src: Any, dst_indices_raw: Any, step_indices_raw: Any, src_indices_raw: Any = None
) -> None:
    """dst[:, dst_indices[i]] = src[:, row_i, step_indices[i]] for every i whose two indices are not negative."""
    step, slot = step_indices_raw.long(), dst_indices_raw.long()
    valid = ((step >= 0) & (slot >= 0)).nonzero(as_tuple=True)[0]
    if valid.numel():
        rows = valid if src_indices_raw is None else src_indices_raw.long()[valid]
        dst[:, slot[valid]] = src[:, rows, step[valid]].to(dst.dtype)


@patch(
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton",
    "fused_mamba_state_scatter_with_mask, fused_conv_window_scatter_with_mask",
    "the commit of accepted recurrent and convolution states is a CUDA-only Triton kernel",
)
def scatter_in_torch(module: Any) -> None:
    module.fused_mamba_state_scatter_with_mask = scatter_accepted
    module.fused_conv_window_scatter_with_mask = scatter_accepted
    module._conv_multi_eligible = lambda pairs: False


@patch(
    "sglang.kernels.ops.elementwise.elementwise",
    "fused_gate_sigmoid_mul, fused_gate_sigmoid_mul_add",
    "the shared-expert gate is a Triton kernel without a CPU branch",
)
def shared_expert_gate(module: Any) -> None:
    import torch

    def fused_gate_sigmoid_mul_add(hidden: Any, gate_w: Any, shared: Any, out: Any) -> None:
        out.add_(shared * torch.sigmoid(hidden @ gate_w)[:, None])

    def fused_gate_sigmoid_mul(hidden: Any, gate_w: Any, shared: Any) -> Any:
        return shared * torch.sigmoid(hidden @ gate_w)[:, None]

    module.fused_gate_sigmoid_mul_add = fused_gate_sigmoid_mul_add
    module.fused_gate_sigmoid_mul = fused_gate_sigmoid_mul


def take_the_cpu_branch(module: Any) -> None:
    """The gated RMSNorm modules choose their torch.ops.sgl_kernel path by this flag."""
    module._use_cpu = True


for _name in ("fused_norm_gate", "layernorm_gated"):
    patch(
        f"sglang.kernels.ops.attention.fla.{_name}",
        "_use_cpu",
        "the CPU branch of the gated RMSNorm is taken on AMX machines only",
    )(take_the_cpu_branch)


@patch(
    "sglang.srt.models.qwen3_5_text",
    "Qwen3_5ForCausalLM.set_dflash_layers_to_capture",
    "0.5.20 defines it twice and the later definition drops the +1 of the captured layers",
    versions=("0.5.20",),
)
def capture_the_right_layers(module: Any) -> None:
    def set_dflash_layers_to_capture(self: Any, layer_ids: list[int]) -> None:
        self.capture_aux_hidden_states = True
        self.model.set_dflash_layers_to_capture([layer + 1 for layer in layer_ids])

    module.Qwen3_5ForCausalLM.set_dflash_layers_to_capture = set_dflash_layers_to_capture
