"""Runs are numbered in the order in which they began: a clock that goes backwards must not hide the newest one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BY_TIME = (
    "UPDATE runs SET number = (SELECT count(*) FROM runs AS other WHERE other.created_at < runs.created_at"
    " OR (other.created_at = runs.created_at AND other.id <= runs.id))"
)


def upgrade() -> None:
    op.add_column("runs", sa.Column("number", sa.Integer(), nullable=False, server_default="0"))
    op.execute(_BY_TIME)
    op.drop_index("runs_by_graph", "runs")
    op.drop_index("runs_by_time", "runs")
    op.create_index("runs_by_graph", "runs", ["graph", "host", "number"])
    op.create_index("runs_by_number", "runs", ["number"])
