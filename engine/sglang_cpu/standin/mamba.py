"""``sgl_kernel.mamba``: the convolution and gated-delta-rule functions SGLang imports by this path."""

from .gdn import (  # noqa: F401
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
)
