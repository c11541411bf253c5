"""One interface over SQLite and PostgreSQL: short transactions, one writer at a time, readers that never block it.

Inside one thread transactions nest: what is written inside `with database.write()` commits with the outermost block.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from orchestrator.store.jsontext import storable

Row = Mapping[str, Any]


class Transaction:
    """Statements of one open transaction; parameters are written as `?` for every database."""

    def __init__(self, connection: Any, placeholder: str, writable: bool) -> None:
        self._connection = connection
        self._placeholder = placeholder
        self.writable = writable

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Runs a statement; returns how many rows it touched."""
        return int(self._run(sql, parameters).rowcount)

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        rows: list[Row] = self._run(sql, parameters).fetchall()
        return rows

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        row: Row | None = self._run(sql, parameters).fetchone()
        return row

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Runs a statement once for each row of parameters."""
        cursor = self._connection.cursor()
        cursor.executemany(self._translate(sql), [_kept(row) for row in rows])

    def _run(self, sql: str, parameters: Sequence[Any]) -> Any:
        return self._connection.execute(self._translate(sql), _kept(parameters))

    def _translate(self, sql: str) -> str:
        return sql if self._placeholder == "?" else sql.replace("?", self._placeholder)


def _kept(parameters: Sequence[Any]) -> list[Any]:
    return [storable(value) if isinstance(value, str) else value for value in parameters]


class Database(ABC):
    """A pool of connections to one store."""

    placeholder = "?"

    def __init__(self, place: str) -> None:
        self.place = place
        self._idle: list[Any] = []
        self._idle_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._current = threading.local()
        self._closed = False

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A consistent view; sees nothing that commits while it is open."""
        current = self._open_transaction()
        if current is not None:
            yield current
            return
        with self._transaction(writable=False) as transaction:
            yield transaction

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """All or nothing; waits for other writers of this and other processes."""
        current = self._open_transaction()
        if current is not None:
            if not current.writable:
                raise RuntimeError("a write was begun inside a read of the same thread")
            yield current
            return
        with self._write_lock, self._transaction(writable=True) as transaction:
            yield transaction

    def close(self) -> None:
        """Closes idle connections; one still in use by a thread closes when that thread is done."""
        with self._idle_lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def vacuum(self) -> None:
        """Rewrites the store without the space of removed rows."""
        connection = self._take()
        try:
            connection.execute("VACUUM")
        except Exception as error:
            if self._is_driver_error(error):
                raise self._failure(error) from error
            raise
        finally:
            self._give_back(connection)

    @contextmanager
    def _transaction(self, writable: bool) -> Iterator[Transaction]:
        connection = self._begin(writable)
        self._current.transaction = Transaction(connection, self.placeholder, writable)
        try:
            yield self._current.transaction
            connection.execute("COMMIT")
        except BaseException as error:
            self._abandon(connection)
            if self._is_driver_error(error):
                raise self._failure(error) from error
            raise
        finally:
            self._current.transaction = None
        self._give_back(connection)

    def _abandon(self, connection: Any) -> None:
        try:
            connection.execute("ROLLBACK")
        except Exception:
            connection.close()  # the driver already ended the transaction, or the connection is gone
            return
        self._give_back(connection)

    def _open_transaction(self) -> Transaction | None:
        return getattr(self._current, "transaction", None)

    def _take(self) -> Any:
        with self._idle_lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: Any) -> None:
        with self._idle_lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def damage(self) -> str:
        """What is wrong with the stored pages, on one line; '' when nothing is, or the server looks after that."""
        return ""

    @abstractmethod
    def size(self) -> int:
        """The bytes that the store takes."""

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _begin(self, writable: bool) -> Any:
        """A connection on which the transaction has begun."""

    @abstractmethod
    def _is_driver_error(self, error: BaseException) -> bool: ...

    @abstractmethod
    def _failure(self, error: BaseException) -> Exception:
        """The error to raise in place of the driver's."""
