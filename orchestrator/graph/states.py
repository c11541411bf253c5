"""Which state may follow which; the store refuses every other change."""

from __future__ import annotations

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import State


class IllegalTransition(OrchestrateError):
    """A state change that the graph does not know."""


_NEXT: dict[State, frozenset[State]] = {
    State.PENDING: frozenset(
        {
            State.IN_PROGRESS,
            State.SKIPPED,
            State.CANCELLED,
            State.ROLLED_BACK,  # its apply had begun when it was interrupted
        }
    ),
    State.IN_PROGRESS: frozenset(
        {
            State.IN_PROGRESS,  # the next step of the same attempt
            State.COMPLETED,
            State.FAILED,
            State.SKIPPED,
            State.UNKNOWN,
            State.PENDING,
        }
    ),
    State.COMPLETED: frozenset({State.PENDING, State.ROLLED_BACK}),
    State.FAILED: frozenset({State.PENDING, State.ROLLED_BACK}),
    State.CANCELLED: frozenset({State.PENDING}),
    State.SKIPPED: frozenset({State.PENDING, State.ROLLED_BACK}),  # left out for a while after its apply had begun
    State.UNKNOWN: frozenset({State.IN_PROGRESS, State.FAILED, State.ROLLED_BACK}),
    State.ROLLED_BACK: frozenset({State.PENDING}),
}


def check_transition(key: str, old: State, new: State) -> None:
    """Raises IllegalTransition when `new` may not follow `old`."""
    if new not in _NEXT[old]:
        raise IllegalTransition(f"task {key} cannot go from {old} to {new}")
