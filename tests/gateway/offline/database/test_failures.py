"""Every exception of the two drivers means one of four things."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, exc, text

from gateway.offline.database.failures import DamagedError, RefusedError, Trouble, failures_are_api_errors, trouble
from gateway.protocol.errors import ServerError, StorageFullError, UnavailableError


def of_sqlite(code: int, kind: type[sqlite3.Error] = sqlite3.DatabaseError) -> exc.DBAPIError:
    original = kind("words")
    original.sqlite_errorcode = code
    return wrapped(original, sqlite3.Error)


def wrapped(original: Exception, base: type[Exception]) -> exc.DBAPIError:
    made = exc.DBAPIError.instance("INSERT", {}, original, base)
    assert isinstance(made, exc.DBAPIError)
    return made


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        (sqlite3.SQLITE_FULL, sqlite3.OperationalError, Trouble.FULL),
        (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.OperationalError, Trouble.FULL),
        (sqlite3.SQLITE_BUSY, sqlite3.OperationalError, Trouble.AWAY),
        (sqlite3.SQLITE_LOCKED, sqlite3.OperationalError, Trouble.AWAY),
        (sqlite3.SQLITE_READONLY, sqlite3.OperationalError, Trouble.AWAY),
        (sqlite3.SQLITE_CANTOPEN, sqlite3.OperationalError, Trouble.AWAY),
        (sqlite3.SQLITE_IOERR_WRITE, sqlite3.OperationalError, Trouble.AWAY),
        (sqlite3.SQLITE_IOERR_READ, sqlite3.OperationalError, Trouble.DAMAGED),
        (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.OperationalError, Trouble.DAMAGED),
        (sqlite3.SQLITE_CORRUPT, sqlite3.DatabaseError, Trouble.DAMAGED),
        (sqlite3.SQLITE_CORRUPT_INDEX, sqlite3.DatabaseError, Trouble.DAMAGED),
        (sqlite3.SQLITE_NOTADB, sqlite3.DatabaseError, Trouble.DAMAGED),
        (sqlite3.SQLITE_TOOBIG, sqlite3.DataError, Trouble.REFUSED),
        (sqlite3.SQLITE_CONSTRAINT_TRIGGER, sqlite3.IntegrityError, Trouble.REFUSED),
        (sqlite3.SQLITE_MISMATCH, sqlite3.IntegrityError, Trouble.REFUSED),
        (sqlite3.SQLITE_ERROR, sqlite3.OperationalError, Trouble.REFUSED),
    ],
)
def test_what_sqlite_says(code: int, kind: type[sqlite3.Error], expected: Trouble) -> None:
    assert trouble(of_sqlite(code, kind)) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("53100", Trouble.FULL),
        ("53300", Trouble.AWAY),  # too many connections
        ("57P01", Trouble.AWAY),
        ("08006", Trouble.AWAY),
        ("40001", Trouble.AWAY),
        ("55P03", Trouble.AWAY),
        ("58030", Trouble.DAMAGED),
        ("58P01", Trouble.DAMAGED),
        ("XX000", Trouble.DAMAGED),
        ("XX001", Trouble.DAMAGED),
        ("XX002", Trouble.DAMAGED),
        ("22021", Trouble.REFUSED),
        ("23514", Trouble.REFUSED),
        ("54000", Trouble.REFUSED),
        ("P0001", Trouble.REFUSED),
    ],
)
def test_what_postgresql_says(state: str, expected: Trouble) -> None:
    assert trouble(wrapped(psycopg.errors.lookup(state)("words"), psycopg.Error)) is expected


@pytest.mark.parametrize("base", [sqlite3.Error, psycopg.Error])
def test_every_class_of_exception_has_a_meaning(base: type[Exception]) -> None:
    def below(kind: type[Exception]) -> list[type[Exception]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    for kind in below(base):
        assert isinstance(trouble(wrapped(kind("words"), base)), Trouble)


def test_a_connection_that_is_gone_is_waited_for() -> None:
    assert trouble(wrapped(psycopg.InterfaceError("the connection is closed"), psycopg.Error)) is Trouble.AWAY
    assert trouble(wrapped(psycopg.OperationalError("server closed"), psycopg.Error)) is Trouble.AWAY


def raiser(error: Exception) -> Callable[[], None]:
    def go() -> None:
        with failures_are_api_errors():
            raise error

    return go


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (of_sqlite(sqlite3.SQLITE_FULL), StorageFullError, 507),
        (of_sqlite(sqlite3.SQLITE_BUSY, sqlite3.OperationalError), UnavailableError, 503),
        (of_sqlite(sqlite3.SQLITE_CORRUPT), DamagedError, 503),
        (of_sqlite(sqlite3.SQLITE_TOOBIG), RefusedError, 500),
        (exc.TimeoutError(), UnavailableError, 503),
    ],
)
def test_what_a_client_is_told(error: Exception, kind: type[Exception], status: int) -> None:
    with pytest.raises(kind) as raised:
        raiser(error)()
    assert raised.value.status == status  # type: ignore[attr-defined]
    assert isinstance(raised.value, UnavailableError | ServerError | StorageFullError)


def test_values_are_not_quoted(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (a TEXT CHECK (length(a) < 3))"))
    with pytest.raises(RefusedError) as raised, failures_are_api_errors(), engine.begin() as connection:
        connection.execute(text("INSERT INTO t VALUES (:a)"), {"a": "secret"})
    assert "secret" not in raised.value.message
    engine.dispose()
