"""Indexes for the newest run of a graph on a host and for the history, which every run and status asks for."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("runs_by_graph", "runs", ["graph", "host", "created_at"])
    op.create_index("runs_by_time", "runs", ["created_at"])
