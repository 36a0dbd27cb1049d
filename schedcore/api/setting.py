"""A setting is declared once, where its field is: its flag, its range and its choices stand in its `Annotated` type.

    max_num_seqs: Annotated[int, Flag("engine", "requests in one step (default: {default})", "N"), Range(1)] = 256

The command line, `--help` and the names in a TOML file are read from that (`gateway/cli/options.py`); `check` holds a
configuration to it.
"""

from __future__ import annotations

import functools
import math
import typing
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field is set from outside. A field without one is set by the program only."""

    group: str  # its heading in --help
    help: str  # {default}: the field's
    metavar: str | None = None  # SIZE: bytes, which may be written as 512M
    name: str = ""  # without dashes; empty: the field's


@dataclass(frozen=True, slots=True)
class Range:
    """Both ends belong to it, the lower one unless `is_open`."""

    least: float
    most: float = math.inf
    is_open: bool = False
    hint: str = ""

    def holds(self, value: float) -> bool:
        return (value > self.least if self.is_open else value >= self.least) and value <= self.most

    def __str__(self) -> str:
        if self.is_open:
            words = "be positive" if self.least == 0 else f"be above {self.least:g}"
        elif self.most < math.inf:
            words = f"be between {self.least:g} and {self.most:g}"
        else:
            words = "not be negative" if self.least == 0 else f"be at least {self.least:g}"
        return words + self.hint


POSITIVE = Range(0, is_open=True)


@dataclass(frozen=True, slots=True)
class OneOf:
    names: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...] = ()  # what a flag may also say, and which name that is

    def named(self, text: str) -> str:
        return dict(self.aliases).get(text, text)

    def __str__(self) -> str:
        return " or ".join(self.names) if len(self.names) <= 2 else f"one of {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class Setting:
    field: str
    kind: type  # bool, int, float, str, or tuple: of strings
    default: object  # None also where there is none
    flag: Flag | None
    range: Range | None
    choices: OneOf | None

    @property
    def destination(self) -> str:
        """The flag's name as an identifier."""
        return (self.flag.name if self.flag else "").replace("-", "_") or self.field

    def check(self, value: object) -> None:
        """None stands for a setting that was not made, and is always right. Raises ValueError."""
        if value is None:
            return
        if self.range is not None:
            assert isinstance(value, int | float)
            if not self.range.holds(value):
                raise ValueError(f"{self.field} must {self.range}")
        if self.choices is not None and value not in self.choices.names:
            raise ValueError(f"{self.field} must be {self.choices}, not {value!r}")


@functools.cache
def settings(config: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """A configuration's fields, in their order."""
    return tuple(_setting(field) for field in msgspec.structs.fields(config))


def check(config: msgspec.Struct) -> None:
    """Raises ValueError for the first field that is out of its range or none of its choices."""
    for setting in settings(type(config)):
        setting.check(getattr(config, setting.field))


def _setting(field: msgspec.structs.FieldInfo) -> Setting:
    is_annotated = typing.get_origin(field.type) is typing.Annotated
    kind, *notes = typing.get_args(field.type) if is_annotated else (field.type,)
    found: dict[type, typing.Any] = {type(note): note for note in notes}
    default = None if field.default is msgspec.NODEFAULT else field.default
    return Setting(field.name, _plain(kind), default, found.get(Flag), found.get(Range), found.get(OneOf))


def _plain(kind: typing.Any) -> type:
    """`int` for `int | None`, `tuple` for `tuple[str, ...]`."""
    if (origin := typing.get_origin(kind)) is tuple:
        return tuple
    plain: type = kind if origin is None else typing.get_args(kind)[0]
    return plain
