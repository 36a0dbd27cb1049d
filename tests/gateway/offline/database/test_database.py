from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from fakes.offline_rows import begun_batch, result, upload
from gateway.offline.database import schema
from gateway.offline.database.database import Database, StoreOpenError, database_url
from gateway.offline.store.accounts import Quota
from gateway.offline.store.directory import DataDirectory
from gateway.offline.store.records import BatchRecord, BatchStatus
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import StorageFullError

type_of_open = Callable[..., Awaitable[OfflineStore]]
type_of_url = Callable[[], str | None]
QUOTA = Quota(2**30, 10**6)


async def test_migrations_lead_to_the_tables(open_store: type_of_open) -> None:
    store = await open_store()
    with store._database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() is not None


def test_filled_database_of_the_first_version_is_brought_up_to_date(tmp_path: Path, new_url: type_of_url) -> None:
    url = database_url(new_url() or f"sqlite:///{tmp_path / 'store.db'}")
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        columns = "id, tenant, purpose, filename, num_bytes, created_at"
        connection.execute(text(f"INSERT INTO files ({columns}) VALUES ('f', '', 'b', 'n', 5, 6)"))
    engine.dispose()
    database = Database(url)
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert connection.execute(text("SELECT id, num_bytes FROM files")).all() == [("f", 5)]
    database.close()


async def test_database_of_a_later_version_is_refused(open_store: type_of_open) -> None:
    store = await open_store()
    with store._database.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreOpenError, match="newer version"):
        await open_store()


def test_files_and_database_belong_together(tmp_path: Path, new_url: type_of_url) -> None:
    url = new_url() or f"sqlite:///{tmp_path / 'elsewhere.db'}"
    first = OfflineStore.open(tmp_path / "a", url, QUOTA)
    first._close()
    other = OfflineStore.open(tmp_path / "b", f"sqlite:///{tmp_path / 'another.db'}", QUOTA)
    other._close()
    with pytest.raises(StoreOpenError, match="do not belong together"):
        OfflineStore.open(tmp_path / "b", url, QUOTA)
    first = OfflineStore.open(tmp_path / "a", url, QUOTA)
    first._close()


def test_one_gateway_per_postgresql_database(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.offline.database.database._LOCK_SECONDS", 0.1)
    first = OfflineStore.open(tmp_path / "a", postgresql_url, QUOTA)
    with pytest.raises(StoreOpenError, match="another gateway uses the database"):
        OfflineStore.open(tmp_path / "b", postgresql_url, QUOTA)
    first._close()


def test_passwords_are_not_shown() -> None:
    with pytest.raises(StoreOpenError) as refused:
        Database(database_url("postgresql://user:secret@127.0.0.1:1/name"))
    assert "127.0.0.1" in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_results_survive_a_full_database(store: OfflineStore) -> None:
    """SQLite says so by itself when a file may not grow; a PostgreSQL server has its own disk."""
    if "postgresql" in store._database.name:
        pytest.skip("the limit is SQLite's")
    batch = await begun_batch(store, 50)
    big = [
        type(r)(r.batch_id, r.index, False, b'"' + bytes(60_000).hex().encode() + b'"')
        for r in (result(batch, i) for i in range(50))
    ]

    def limit(connection: Connection, num_pages: int) -> None:
        connection.execute(text(f"PRAGMA max_page_count = {num_pages}"))

    await store._threads.write(lambda connection: limit(connection, 200))
    await store.finish_rows(big[:1])
    with pytest.raises(StorageFullError):
        await store.finish_rows(big[1:])
    now = await store.batch("", batch.id)
    assert (now.num_completed, len(await store.pending_rows(batch.id))) == (1, 49)
    await store._threads.write(lambda connection: limit(connection, 2**30))
    await store.finish_rows(big[1:])
    assert (await store.finalize(batch.id)).num_completed == 50


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def grow(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)


async def rows_that_fit(store: OfflineStore, batch: BatchRecord) -> int:
    for index in range(30):
        try:
            await store.finish_rows([result(batch, index, "x" * 200_000)])
        except StorageFullError:
            return index
    pytest.fail("the disk did not fill")


async def test_full_disk_loses_nothing(small_disk: Path) -> None:
    store = OfflineStore.open(small_disk / "data", None, QUOTA)
    batch = await begun_batch(store, 30)
    kept = await upload(store, b"kept")
    with pytest.raises(StorageFullError):
        await upload(store, bytes(8_000_000))
    done = await rows_that_fit(store, batch)
    assert (await store.batch("", batch.id)).num_completed == done
    with pytest.raises(StorageFullError):
        await store.finalize(batch.id, BatchStatus.EXPIRED)
    await store.close()
    grow(small_disk)
    store = OfflineStore.open(small_disk / "data", None, QUOTA)
    assert store.path(kept).read_bytes() == b"kept"
    await store.recover()
    ended = await store.finalize(batch.id, BatchStatus.EXPIRED)
    assert (ended.status, ended.num_completed) == (BatchStatus.EXPIRED, done)
    assert ended.output_file_id is not None
    assert len(store.path(ended.output_file_id).read_bytes().splitlines()) == done
    await store.close()


def test_what_a_crash_left_is_cleaned(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    known, orphan = ("file-" + digit * 24 for digit in "0a")
    (tmp_path / "parts" / ("b" * 24)).write_bytes(b"x")
    for name in (known, orphan):
        directory.file(name).write_bytes(b"x")
    directory.clean({known})
    assert [path.name for path in directory.files.iterdir()] == [known]
    assert not list((tmp_path / "parts").iterdir())
    directory.close()
