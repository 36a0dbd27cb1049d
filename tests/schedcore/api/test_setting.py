"""A field's flag, range and choices are read from its type."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from schedcore.api.setting import POSITIVE, Flag, OneOf, Range, check, settings


class Config(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    size: Annotated[int | None, Flag("group", "of it", "SIZE", "other-size"), Range(1)] = None
    ratio: Annotated[float, Range(0)] = 0.5
    port: Annotated[int, Range(0, 99)] = 8
    pause: Annotated[float, POSITIVE] = 1.0
    depth: Annotated[int, Range(2, hint="; flat does without")] = 2
    kind: Annotated[str, OneOf(("a", "b", "c"))] = "a"
    mode: Annotated[str | None, OneOf(("x", "y"))] = None
    names: Annotated[tuple[str, ...], Flag("group", "repeatable")] = ()

    def __post_init__(self) -> None:
        check(self)


def test_what_a_type_says_of_its_field() -> None:
    found = {setting.field: setting for setting in settings(Config)}
    assert list(found) == list(Config.__struct_fields__)
    assert (found["size"].kind, found["names"].kind, found["folder"].kind) == (int, tuple, str)
    assert (found["size"].destination, found["names"].destination) == ("other_size", "names")
    assert found["size"].flag == Flag("group", "of it", "SIZE", "other-size")
    assert (found["port"].default, found["folder"].default) == (8, None)
    assert found["folder"].flag is None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("size", 0, "size must be at least 1"),
        ("ratio", -1, "ratio must not be negative"),
        ("ratio", float("nan"), "ratio must not be negative"),
        ("port", 100, "port must be between 0 and 99"),
        ("pause", 0, "pause must be positive"),
        ("depth", 1, "depth must be at least 2; flat does without"),
        ("kind", "d", "kind must be one of a, b, c, not 'd'"),
        ("mode", "z", "mode must be x or y, not 'z'"),
    ],
)
def test_what_is_out_of_range_is_named(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        Config(folder="f", **{field: value})


def test_ends_of_ranges_belong_to_them() -> None:
    config = Config(folder="f", size=1, ratio=0, port=99, pause=0.001, mode="y")
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config
