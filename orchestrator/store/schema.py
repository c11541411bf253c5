"""Which schema a store has, and bringing it to the newest one."""

from __future__ import annotations

from orchestrator.errors import StoreError
from orchestrator.store.database import Database, Transaction

REVISIONS = ("0001", "0002", "0003")  # oldest first; the last one is what this version reads and writes
HEAD = REVISIONS[-1]


def revision(database: Database) -> str | None:
    """The revision of the store, None for an empty one. A store of something else is refused."""
    with database.read() as transaction:
        names = _table_names(transaction, database.placeholder)
        if not names:
            return None
        if "alembic_version" not in names:
            raise StoreError(f"{database.place} holds tables of another program: choose another store with --state")
        row = transaction.one("SELECT version_num FROM alembic_version")
    return str(row["version_num"]) if row else None


def check_known(found: str | None, place: str) -> None:
    """Refuses a store that a newer version wrote."""
    if found is not None and found not in REVISIONS:
        raise StoreError(
            f"the store {place} has schema {found}, which is newer than this version reads ({HEAD}): "
            "update orchestrate, or choose another store with --state"
        )


def _table_names(transaction: Transaction, placeholder: str) -> set[str]:
    if placeholder == "?":
        rows = transaction.all("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    else:
        rows = transaction.all("SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema()")
    return {row["name"] for row in rows}
