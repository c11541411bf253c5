"""``python -m sglang_ddtree bench``: what the kernels, a decode step and a served model cost on this device."""
