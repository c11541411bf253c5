"""The part of inspect that runs on the host.

Its modules are joined into one script (tasks.inspecting.probe.script) and sent over stdin to the host's python3:
standard library only, Python 3.8 or newer, nothing is written. They import each other only by
`from tasks.inspecting.host_side.X import …`, which the joining removes.
"""
