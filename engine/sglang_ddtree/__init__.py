"""DDTree for SGLang: best-first draft trees from a DFlash drafter, verified in one tree-attention pass."""

__version__ = "0.1.0"
