"""A data directory and a database belong together: each carries the same id."""

from __future__ import annotations

import secrets

from sqlalchemy import insert, select

from gateway.offline.database.database import Database, StoreOpenError
from gateway.offline.database.schema import store
from gateway.offline.store import files
from gateway.offline.store.directory import DataDirectory


def pair(directory: DataDirectory, database: Database) -> None:
    """Gives new ones an id; a new directory may have a database without files. Raises StoreOpenError for no pair."""
    known = directory.store_id
    with database.writing() as connection:
        claimed = connection.scalar(select(store.c.id))
        is_new = claimed is None if known is None else False
        is_adopted = known is None and claimed is not None and not files.ids(connection)
        if is_new:
            claimed = secrets.token_hex(16)
            connection.execute(insert(store).values(id=claimed))
        elif known != claimed and not is_adopted:
            raise StoreOpenError(
                f"the data directory {directory.path} and the database {database.name} do not belong together: "
                "use the --data-dir and --database-url that were used together before"
            )
    if claimed is not None and known is None:
        directory.store_id = claimed
