"""What lies in a data directory: ours is kept in order, what is somebody else's is left alone."""

from __future__ import annotations

import logging
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gateway.offline.database.database import StoreOpenError
from gateway.offline.store.accounts import Quota
from gateway.offline.store.directory import DataDirectory
from gateway.offline.store.store import OfflineStore

QUOTA = Quota(2**30, 10**6)
OURS = "file-" + "0a" * 12
PART = "1b" * 12


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def opened_once(folder: Path, *names: str) -> None:
    """A data directory that has been used, with files of these names in it."""
    OfflineStore.open(folder, None, QUOTA)._close()
    for name in names:
        (folder / "files" / name).write_bytes(b"x")


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("thesis")


@pytest.mark.parametrize(
    "names",
    [
        ["files/thesis.txt"],
        ["parts/thesis.txt"],
        ["thesis.txt"],
        ["files/thesis.txt", f"files/{OURS}", "lock"],
        ["store.db", "files/a/b"],
        ["files"],  # a file
    ],
)
def test_a_directory_of_somebody_else_is_refused_and_untouched(tmp_path: Path, names: list[str]) -> None:
    put(tmp_path / "d", *names)
    before = contents(tmp_path)
    with pytest.raises(StoreOpenError, match=r"no data directory of hocket.*--data-dir"):
        OfflineStore.open(tmp_path / "d", None, QUOTA)
    assert contents(tmp_path) == before


def test_files_alone_from_a_backup_lose_nothing(tmp_path: Path) -> None:
    put(tmp_path / "d", f"files/{OURS}")
    before = contents(tmp_path)
    with pytest.raises(StoreOpenError, match="Restore store-id and the database"):
        OfflineStore.open(tmp_path / "d", None, QUOTA)
    assert contents(tmp_path) == before


def test_a_directory_without_its_database_loses_nothing(tmp_path: Path) -> None:
    opened_once(tmp_path / "d", OURS)
    (tmp_path / "d" / "store.db").unlink()
    before = contents(tmp_path)
    with pytest.raises(StoreOpenError, match="lost its database"):
        OfflineStore.open(tmp_path / "d", None, QUOTA)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("change", ["UPDATE store SET id = 'other'", "UPDATE alembic_version SET version_num = '9'"])
def test_foreign_or_newer_databases_lose_nothing(tmp_path: Path, change: str) -> None:
    opened_once(tmp_path / "d", OURS)
    engine = create_engine(f"sqlite:///{tmp_path / 'd' / 'store.db'}")
    with engine.begin() as connection:
        connection.execute(text(change))
    engine.dispose()
    with pytest.raises(StoreOpenError):
        OfflineStore.open(tmp_path / "d", None, QUOTA)
    assert (tmp_path / "d" / "files" / OURS).exists()


@pytest.mark.parametrize("names", [[], ["lost+found/x"], ["lock", "parts/" + PART, "store.db-wal"]])
def test_empty_directories_and_first_starts_that_were_killed_are_taken(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "d").mkdir()
    put(tmp_path / "d", *names)
    opened_once(tmp_path / "d")
    assert (tmp_path / "d" / "store-id").exists()


def test_only_names_of_ours_are_cleaned(tmp_path: Path) -> None:
    opened_once(tmp_path, OURS, "thesis.txt", "file-notes", OURS + ".bak")
    put(tmp_path, f"parts/{PART}", "parts/notes.txt", "notes.txt")
    (tmp_path / "files" / ("file-" + "2c" * 12)).mkdir()
    OfflineStore.open(tmp_path, None, QUOTA)._close()
    assert {path.name for path in (tmp_path / "files").iterdir()} == {
        "thesis.txt",
        "file-notes",
        OURS + ".bak",
        "file-" + "2c" * 12,
    }
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").exists()


def test_whoever_could_look_into_it_no_longer_may(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened_once(tmp_path / "d")
    (tmp_path / "d").chmod(0o755)
    (tmp_path / "d" / "files").chmod(0o750)
    with caplog.at_level(logging.WARNING):
        DataDirectory(tmp_path / "d").close()
    assert [stat.S_IMODE((tmp_path / "d" / name).stat().st_mode) for name in (".", "files")] == [0o700, 0o700]
    assert "mode 755" in caplog.text


def test_where_the_mode_cannot_be_changed_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir(mode=0o755)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    DataDirectory(tmp_path / "d").close()
    assert "cannot change that" in caplog.text


def _directory_for_a_database(folder: Path) -> None:
    (folder / "store.db").unlink()
    (folder / "store.db").mkdir()


def _directory_for_an_id(folder: Path) -> None:
    (folder / "store-id").unlink()
    (folder / "store-id").mkdir()


def _file_for_a_folder(folder: Path) -> None:
    shutil.rmtree(folder / "files")
    (folder / "files").write_text("x")


@pytest.mark.parametrize("damage", [_directory_for_a_database, _directory_for_an_id, _file_for_a_folder])
def test_whatever_is_wrong_with_it_is_said_in_a_line_that_names_it(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    opened_once(tmp_path / "d")
    damage(tmp_path / "d")
    with pytest.raises(StoreOpenError, match=r"data directory .*/d cannot be used") as refused:
        OfflineStore.open(tmp_path / "d", None, QUOTA)
    assert len(str(refused.value).splitlines()) == 1
