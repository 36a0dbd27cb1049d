"""The connection to the store's tables: SQLite by default, PostgreSQL by URL. Blocking; store.py has the threads.

SQLite runs in WAL mode with synchronous=FULL: a commit returns when it is on the disk, and a reader never waits for the
writer. There is one writer per store, so nothing is ever busy.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command, util
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.engine import URL

from gateway.offline.database.failures import failures_are_api_errors
from gateway.protocol.errors import ApiError

_BUSY_SECONDS = 30.0  # another program looks at the SQLite file
_LOCK_KEY = 0x686F636B6574  # of the PostgreSQL advisory lock: one gateway per database, or those that share it
_WRITER_KEY = _LOCK_KEY + 1  # held by whichever of them writes
LEADER_KEY = _LOCK_KEY + 2  # held by the one of them that leads
_SHARED_SETTINGS = (  # a gateway that hangs in a transaction holds up the others no longer than this
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET lock_timeout = '20s'",
)
_LOCK_SECONDS = 5.0  # a server needs a moment to see that a gateway was killed


class StoreOpenError(Exception):
    """One line that says why the store cannot be opened, and what to do."""


def database_url(text: str) -> URL:
    """Raises StoreOpenError."""
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise StoreOpenError(f"{text!r} is no database URL such as postgresql://user:password@host/name") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreOpenError(f"{url.get_backend_name()} is not supported: use SQLite or PostgreSQL")
    return url


class Database:
    """Raises StoreOpenError where it cannot be reached, or where another gateway uses it that does not share it."""

    def __init__(self, url: URL, *, is_shared: bool = False) -> None:
        self.name = url.render_as_string(hide_password=True)
        self._is_shared = is_shared
        self._holder: Connection | None = None
        if url.get_backend_name() == "sqlite" and url.database:
            os.close(os.open(url.database, os.O_RDWR | os.O_CREAT, 0o600))
        if is_shared and url.get_backend_name() != "postgresql":
            raise StoreOpenError("several gateways share a PostgreSQL database: name it with --database-url")
        try:
            self._engine = _engine(url)
            if is_shared:
                event.listen(self._engine, "connect", _on_shared_connect)
            if url.get_backend_name() == "postgresql":
                self._lock()
            with self.writing() as connection:
                _migrate(connection)
        except util.CommandError as error:
            self.close()
            raise StoreOpenError(f"the database {self.name} was written by a newer version: {error}") from None
        except (exc.SQLAlchemyError, ApiError, ImportError) as error:
            self.close()
            cause = error.__cause__ if isinstance(error, ApiError) else error
            reason = str(getattr(cause, "orig", None) or error).strip().splitlines()[0]
            raise StoreOpenError(f"the database {self.name} cannot be opened: {reason}") from None

    def close(self) -> None:
        if self._holder is not None:
            self._holder.close()
        if hasattr(self, "_engine"):
            self._engine.dispose()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction, committed at the end. Raises what failures.py says; then nothing changed.

        REQUIRES: no other thread is in here. Nor is any of another gateway that shares the database: one writes at a
        time, whatever reads before it writes needs no other care.
        """
        with failures_are_api_errors(), self._engine.begin() as connection:
            if self._is_shared:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITER_KEY})
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with failures_are_api_errors(), self._engine.connect() as connection:
            yield connection

    def _lock(self) -> None:
        """Held as long as the connection is."""
        self._holder = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        deadline = time.monotonic() + _LOCK_SECONDS
        attempt = text(f"SELECT pg_try_advisory_lock{'_shared' if self._is_shared else ''}(:key)")
        while not self._holder.scalar(attempt, {"key": _LOCK_KEY}):
            if time.monotonic() > deadline:
                self.close()
                raise StoreOpenError(
                    f"another gateway uses the database {self.name}: give each one of its own, or all --share-batches"
                )
            time.sleep(_LOCK_SECONDS / 50)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_size=8, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where SQLAlchemy says so, DDL included
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-16384"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _on_shared_connect(connection: Any, _: Any) -> None:
    connection.autocommit = True
    for setting in _SHARED_SETTINGS:
        connection.execute(setting)
    connection.autocommit = False


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
