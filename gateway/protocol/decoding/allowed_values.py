"""Which values a parameter of a request may have, where there are a few."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_STEPS = re.compile(r"\[[^\]]*\]|[^.\[\]]+")  # of a path such as messages[0].role


def allowed_values(request: Any, path: str) -> list[str]:
    """request: a type that msgspec decodes. path: as msgspec says it. Empty where the values cannot be listed."""
    places = [inspect.type_info(request)]
    for step in _STEPS.findall(path):
        places = [inner for place in places for inner in _behind(place, step)]
    literals = [place for place in _flat(places) if isinstance(place, inspect.LiteralType)]
    return [str(value) for literal in literals for value in literal.values]


def _behind(place: inspect.Type, step: str) -> Iterator[inspect.Type]:
    for option in _flat([place]):
        if isinstance(option, inspect.StructType):
            yield from (field.type for field in option.fields if field.encode_name == step)
        elif isinstance(option, inspect.ListType):
            yield option.item_type
        elif isinstance(option, inspect.DictType):
            yield option.value_type


def _flat(places: list[inspect.Type]) -> Iterator[inspect.Type]:
    for place in places:
        if isinstance(place, inspect.UnionType):
            yield from _flat(list(place.types))
        else:
            yield place
