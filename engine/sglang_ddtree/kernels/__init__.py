"""Triton ops, one file per op; ``reference`` holds the plain-PyTorch twin of each, with the same signature."""
