"""What a database's refusal means for whoever asked: wait, give up this value, or mistrust this part of the disk.

    full      the disk is full: StorageFullError         the same call works again when there is room
    away      not reached, locked, shutting down:        the same call works again later
              UnavailableError
    damaged   a page cannot be read: DamagedError        whatever lies elsewhere goes on
    refused   this value or statement: RefusedError      the same call never works

Every exception of the two drivers is one of the four.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from gateway.protocol.errors import ServerError, StorageFullError, UnavailableError

_MAX_REASON = 200  # characters of the driver's own words


class Trouble(enum.Enum):
    FULL = enum.auto()
    AWAY = enum.auto()
    DAMAGED = enum.auto()
    REFUSED = enum.auto()


class DamagedError(UnavailableError):
    """What was asked for lies on a part of the database that cannot be read."""

    default_code = "database_damaged"


class RefusedError(ServerError):
    """The database takes this value never: it is too large, or breaks a rule."""

    default_code = "database_refused"


def is_passing(error: Exception) -> bool:
    """Whether the same call will work later, for whoever calls."""
    return isinstance(error, StorageFullError | UnavailableError) and not isinstance(error, DamagedError)


_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
_SQLITE_DAMAGED = frozenset({sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_READ})
_SQLITE_PRIMARY = {  # by primary code, the low byte
    sqlite3.SQLITE_CORRUPT: Trouble.DAMAGED,
    sqlite3.SQLITE_NOTADB: Trouble.DAMAGED,
    sqlite3.SQLITE_TOOBIG: Trouble.REFUSED,
    sqlite3.SQLITE_CONSTRAINT: Trouble.REFUSED,
    sqlite3.SQLITE_MISMATCH: Trouble.REFUSED,
    sqlite3.SQLITE_ERROR: Trouble.REFUSED,
    sqlite3.SQLITE_RANGE: Trouble.REFUSED,
}
_POSTGRESQL_FULL = "53100"
_POSTGRESQL_CLASSES = {  # by the first two characters of SQLSTATE
    "22": Trouble.REFUSED,  # data
    "23": Trouble.REFUSED,  # constraints
    "42": Trouble.REFUSED,  # the statement
    "44": Trouble.REFUSED,
    "54": Trouble.REFUSED,  # limits: too large, too complex
    "P0": Trouble.REFUSED,  # a trigger
    "XX": Trouble.DAMAGED,
}
_POSTGRESQL_DAMAGED = frozenset({"58030", "58P01"})  # a file of the database cannot be read, or is gone


def trouble(error: exc.DBAPIError) -> Trouble:
    original = error.orig
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", None)
        found = None if code is None else _of_sqlite(code)
    else:
        found = _of_postgresql(getattr(original, "sqlstate", None))
    if found is not None:
        return found
    if error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InternalError):
        return Trouble.AWAY
    if isinstance(error, exc.InterfaceError) and not isinstance(original, sqlite3.Error):
        return Trouble.AWAY  # psycopg: the connection is closed; sqlite3: a value of a type that it does not know
    return Trouble.REFUSED


def _of_sqlite(code: int) -> Trouble | None:
    if code in _SQLITE_FULL:
        return Trouble.FULL
    if code in _SQLITE_DAMAGED:
        return Trouble.DAMAGED
    return _SQLITE_PRIMARY.get(code & 0xFF)


def _of_postgresql(state: str | None) -> Trouble | None:
    if state is None:
        return None
    if state == _POSTGRESQL_FULL:
        return Trouble.FULL
    if state in _POSTGRESQL_DAMAGED:
        return Trouble.DAMAGED
    return _POSTGRESQL_CLASSES.get(state[:2])


def reason(error: exc.DBAPIError) -> str:
    """The driver's own words, in a line: never the statement's values."""
    words = str(error.orig or type(error).__name__).strip() or type(error).__name__
    return words.splitlines()[0][:_MAX_REASON]


@contextmanager
def failures_are_api_errors() -> Iterator[None]:
    """Raises StorageFullError, UnavailableError, DamagedError or RefusedError for what a driver raises."""
    try:
        yield
    except exc.DBAPIError as error:
        match trouble(error):
            case Trouble.FULL:
                full = "The server's disk is full: nothing was saved. Try again later."
                raise StorageFullError(full) from error
            case Trouble.AWAY:
                away = "The server's database cannot be reached."
                raise UnavailableError(away, code="database_unavailable") from error
            case Trouble.DAMAGED:
                raise DamagedError(f"A part of the server's database is damaged: {reason(error)}.") from error
            case Trouble.REFUSED:
                raise RefusedError(f"The server's database refused this: {reason(error)}.") from error
    except exc.TimeoutError as error:  # every connection is in use
        raise UnavailableError("The server's database is busy.", code="database_unavailable") from error
