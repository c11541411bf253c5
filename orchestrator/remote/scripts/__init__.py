"""Programs that run on the host with its own python3: standard library only, Python 3.8 and later.

Each reads one JSON object from its first argument and prints one JSON document as its last line.
"""
