"""The one error that the command line turns into a sentence and exit code 2."""

from __future__ import annotations


class BaselineError(ValueError):
    """Bad input: one sentence that says what, where, and what to do next."""
