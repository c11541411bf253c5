"""orchestrate: bring DDTree speculative decoding to SGLang hosts, with proof and a way back."""

__version__ = "0.1.0"
