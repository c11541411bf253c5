"""Plain-PyTorch ops: exact, short, slow.  They define what the Triton twins must compute."""
