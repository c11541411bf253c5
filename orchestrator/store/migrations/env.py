"""Alembic's entry: runs the migrations inside the transaction that the store opened."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

from orchestrator.store import tables  # noqa: F401  fills the metadata that new revisions are compared with

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,  # SQLite can change a table only by copying it
)
context.run_migrations()
