"""The views of the TUI: each shows one reading of the store."""
