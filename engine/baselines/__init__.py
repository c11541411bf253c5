"""Offline acceptance oracle, baselines and parity check: plain PyTorch and Transformers, nothing of SGLang."""
