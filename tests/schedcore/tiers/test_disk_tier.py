"""Segments on disk: what was written is read back byte for byte or not at all, and the bound holds."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedcore.tiers.disk_tier import DiskTier, DiskTierError

BLOCK_BYTES = 100


def key(i: int) -> bytes:
    return i.to_bytes(16, "little")


def block(i: int) -> memoryview:
    return memoryview(bytes((i * 7 + k) % 256 for k in range(BLOCK_BYTES)))


def read(disk: DiskTier, i: int) -> bytes | None:
    into = bytearray(BLOCK_BYTES)
    return bytes(into) if disk.read(key(i), memoryview(into)) else None


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("segment-*"))


def test_blocks_are_there_again_after_a_restart(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, BLOCK_BYTES, 1 << 20)
    for i in range(20):
        assert disk.write(key(i), block(i)) == []
    disk.close()
    again = DiskTier(tmp_path, BLOCK_BYTES, 1 << 20)
    assert sorted(again.all_keys()) == sorted(key(i) for i in range(20))
    assert [read(again, i) for i in range(21)] == [*(bytes(block(i)) for i in range(20)), None]
    again.close()


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "cache", BLOCK_BYTES, 1 << 20)
    disk.write(key(1), block(1))
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache").iterdir()} == {0o600}
    disk.close()


@given(
    max_records=st.integers(1, 30),
    runs=st.lists(st.lists(st.integers(0, 60), max_size=40), min_size=1, max_size=4),
    shrink=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_and_the_oldest_goes_first(
    tmp_path_factory: pytest.TempPathFactory, max_records: int, runs: list[list[int]], shrink: bool
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    max_bytes = 24 + max_records * (BLOCK_BYTES + 40)
    for run in runs:
        disk = DiskTier(folder, BLOCK_BYTES, max_bytes)
        known = {int.from_bytes(k, "little") for k in disk.all_keys()}
        for i in run:
            dropped = disk.write(key(i), block(i))
            assert dropped is not None
            known = known - {int.from_bytes(k, "little") for k in dropped} | {i}
            assert folder_bytes(folder) == disk.num_bytes <= max_bytes
            assert {int.from_bytes(k, "little") for k in disk.all_keys()} == known
            assert read(disk, i) == bytes(block(i))
        disk.close()
        if shrink:
            max_bytes = max(24 + BLOCK_BYTES + 40, max_bytes // 2)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_never_yields_wrong_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("disk")
    disk = DiskTier(folder, BLOCK_BYTES, 1 << 20)
    for i in range(8):
        disk.write(key(i), block(i))
    disk.close()
    [path] = folder.glob("segment-*")
    spoiled = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(spoiled[: data.draw(st.integers(0, len(spoiled)))]))
    again = DiskTier(folder, BLOCK_BYTES, 1 << 20)
    for i in range(8):
        assert read(again, i) in (None, bytes(block(i)))
        again.write(key(i), block(i))
        assert read(again, i) == bytes(block(i))
    again.close()


def test_a_file_that_is_damaged_while_it_is_open_is_a_miss(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, BLOCK_BYTES, 1 << 20)
    disk.write(key(1), block(1))
    [path] = tmp_path.glob("segment-*")
    os.truncate(path, 50)
    assert read(disk, 1) is None
    assert disk.all_keys() == []
    disk.close()


def test_a_folder_in_use_and_a_bound_too_small_are_refused(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, BLOCK_BYTES, 1 << 20)
    with pytest.raises(DiskTierError, match="in use by another engine"):
        DiskTier(tmp_path, BLOCK_BYTES, 1 << 20)
    disk.close()
    with pytest.raises(DiskTierError, match="too little for a block of 100 bytes"):
        DiskTier(tmp_path, BLOCK_BYTES, 100)
