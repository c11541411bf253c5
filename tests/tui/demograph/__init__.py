"""A graph that any machine can run in seconds: what tests start, cancel, resume and roll back for real."""
