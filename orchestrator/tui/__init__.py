"""The terminal user interface: a reader of the store. Nothing here is imported by the core."""
