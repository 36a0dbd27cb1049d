"""Sessions on disk: what was written is read back whole or not at all, bounded and shared fairly, its owner's alone."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedcore.tiers.session_files import PAGE_BYTES, SessionFiles, SessionName

TESTS = Path(__file__).resolve().parents[2]
NUM_TOKENS_PER_PAGE = PAGE_BYTES // 4


def open_files(
    folder: Path, fingerprint: str = "model", max_num_sessions: int = 100, max_bytes: int = 1 << 20
) -> SessionFiles:
    return SessionFiles(folder, fingerprint, max_num_sessions, max_bytes)


def name(i: int, tenant: str = "t") -> SessionName:
    return SessionName(tenant, "salt/ü", f"session {i}")


def tokens(first: int, num: int = 10) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(first, first + num, dtype=np.int32)


def recalled(files: SessionFiles) -> dict[SessionName, list[int]]:
    """In the order in which they come."""
    return {found: ids.tolist() for found, ids in files.recall()}


def session_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if len(path.name) == 32)


def test_sessions_are_there_again_oldest_first_with_their_newest_tokens(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    for i, first in ((3, 30), (1, 10), (2, 20), (1, 13)):
        assert files.write(name(i), tokens(first))
    again = open_files(tmp_path)
    found = recalled(again)
    assert list(found) == [name(3), name(2), name(1)]
    assert found[name(1)] == tokens(13).tolist()
    again.write(name(3), tokens(0))
    again.remove(name(2))
    again.remove(name(9))
    assert list(recalled(open_files(tmp_path))) == [name(1), name(3)]


def test_names_that_differ_in_one_part_are_different_sessions(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    names = [SessionName(*parts) for parts in (("a", "", "s"), ("", "a", "s"), ("a", "s", ""), ("as", "", ""))]
    for i, each in enumerate(names):
        files.write(each, tokens(i))
    assert recalled(open_files(tmp_path)) == {each: tokens(i).tolist() for i, each in enumerate(names)}


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        open_files(tmp_path / "sessions").write(name(1), tokens(1))
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "sessions").stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "sessions").iterdir()] == [0o600]


def test_what_another_model_wrote_is_not_used_and_goes_first(tmp_path: Path) -> None:
    for fingerprint in ("one", "other"):
        open_files(tmp_path, fingerprint).write(name(1), tokens(1))
    files = open_files(tmp_path, "other", max_num_sessions=2)
    assert list(recalled(files)) == [name(1)]
    files.write(name(2), tokens(2))
    assert list(recalled(open_files(tmp_path, "other"))) == [name(1), name(2)]
    assert recalled(open_files(tmp_path, "one")) == {}


def test_what_is_not_the_books_stays_and_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "sessions", tmp_path / "elsewhere"
    files = open_files(folder)
    files.write(name(1), tokens(1))
    [path] = session_paths(folder)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    (folder / "notes").write_text("mine")
    (folder / ("0" * 32)).mkdir()
    again = open_files(folder, max_num_sessions=1)
    assert recalled(again) == {}
    again.write(name(2), tokens(2))
    assert {entry.name for entry in folder.iterdir()} > {"notes", "0" * 32, path.name}
    assert elsewhere.stat().st_size > 0


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_damage_costs_the_sessions_that_it_met(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("sessions")
    files = open_files(folder)
    for i in range(4):
        files.write(name(i), tokens(i, 20))
    paths = session_paths(folder)
    contents = [path.read_bytes() for path in paths]
    hurt = data.draw(st.sets(st.sampled_from(paths)))
    for path in hurt:
        content = bytearray(path.read_bytes())
        match data.draw(st.sampled_from(["flip", "cut", "longer", "another's"])):
            case "flip":
                content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
            case "cut":
                del content[data.draw(st.integers(0, len(content) - 1)) :]
            case "longer":
                content += data.draw(st.binary(min_size=1, max_size=9))
            case "another's":
                content[:] = contents[(paths.index(path) + 1) % 4]  # none of them gets its own back
        path.write_bytes(bytes(content))
    again = open_files(folder, max_num_sessions=4)
    found = recalled(again)
    assert len(found) == 4 - len(hurt)
    assert all(ids == tokens(int(each.session_id.split()[1]), 20).tolist() for each, ids in found.items())
    for i in range(4, 4 + len(hurt)):  # there is room, since what is damaged goes
        again.write(name(i), tokens(i))
    assert recalled(open_files(folder)).keys() == found.keys() | {name(i) for i in range(4, 4 + len(hurt))}


def test_damage_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = open_files(tmp_path)
    for i in range(3):
        files.write(name(i), tokens(i))
    for path in session_paths(tmp_path)[:2]:
        path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        recalled(open_files(tmp_path))
    assert [record.message for record in caplog.records] == [f"2 sessions in {tmp_path} are damaged and are forgotten"]


WRITER = """
import sys
from pathlib import Path
from test_session_files import name, open_files, tokens
files = open_files(Path(sys.argv[1]))
for turn in range(1000000):
    for i in range(5):
        files.write(name(i), tokens(turn, 20000))
    print(turn, flush=True)
"""


@pytest.mark.parametrize("num_turns", [1, 3, 20])
def test_a_writer_killed_at_any_moment_leaves_whole_sessions(num_turns: int, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    path = os.pathsep.join((str(TESTS.parent), str(Path(__file__).parent)))
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    with process:
        assert process.stdout is not None
        for _ in range(num_turns):
            assert process.stdout.readline()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    found = recalled(open_files(folder))
    assert found.keys() == {name(i) for i in range(5)}
    for ids in found.values():
        assert ids == tokens(ids[0], 20000).tolist()
        assert ids[0] >= num_turns - 1
    assert len(list(folder.iterdir())) == 5  # what was being written is gone


@given(
    max_num=st.integers(1, 6),
    max_pages=st.integers(1, 12),
    writes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 3)), max_size=30),
    reopens=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_the_bounds_hold_and_who_takes_most_gives_way(
    max_num: int,
    max_pages: int,
    writes: list[tuple[str, int, int]],
    reopens: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Against a list of sessions, oldest first."""
    folder = tmp_path_factory.mktemp("sessions")
    max_bytes = max_pages * PAGE_BYTES
    files = open_files(folder, max_num_sessions=max_num, max_bytes=max_bytes)
    known: dict[SessionName, int] = {}  # pages

    def share(tenant: str, is_crowded: bool) -> int:
        pages = [num for each, num in known.items() if each.tenant == tenant]
        return len(pages) if is_crowded else sum(pages)

    for tenant, i, num_pages in writes:
        each = name(i, tenant)
        is_written = files.write(each, tokens(i, num_pages * NUM_TOKENS_PER_PAGE + 1))
        assert is_written == (num_pages + 1 <= max_pages)
        if not is_written:
            continue
        while (is_crowded := len(known | {each: 0}) > max_num) or sum(known.values()) + num_pages + 1 > max_pages:
            tenants = {one.tenant for one in known}
            most = max(share(one, is_crowded) for one in tenants)
            largest = {one for one in tenants if share(one, is_crowded) == most}
            giving = {tenant} & largest or largest
            gone = next(one for one in known if one.tenant in giving)
            del known[gone]
        known.pop(each, None)
        known[each] = num_pages + 1
        paths = session_paths(folder)
        assert len(paths) <= max_num
        assert sum(-(-path.stat().st_size // PAGE_BYTES) for path in paths) * PAGE_BYTES == files.num_bytes <= max_bytes
        if reopens:
            files = open_files(folder, max_num_sessions=max_num, max_bytes=max_bytes)
            assert list(recalled(files)) == list(known)
    assert list(recalled(open_files(folder, max_num_sessions=max_num, max_bytes=max_bytes))) == list(known)


def test_a_smaller_bound_holds_from_the_start(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    for i in range(10):
        files.write(name(i), tokens(i))
    smaller = open_files(tmp_path, max_num_sessions=3)
    recalled(smaller)
    assert list(recalled(open_files(tmp_path))) == [name(7), name(8), name(9)]
    recalled(open_files(tmp_path, max_bytes=PAGE_BYTES))
    assert list(recalled(open_files(tmp_path))) == [name(9)]


def test_a_disk_that_fails_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    files = open_files(folder)
    files.write(name(1), tokens(1))
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        files.write(name(2), tokens(2))
    files.remove(name(1))
    folder.mkdir()
    assert files.write(name(2), tokens(2))
    assert list(recalled(open_files(folder))) == [name(2)]
