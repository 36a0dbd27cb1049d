"""Word lists that the topics draw from, and made-up words for what no list can cover."""

import random
import tomllib
from pathlib import Path

_LISTS = {name: text.split() for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()}

DAYS = _LISTS["days"]
MONTHS = _LISTS["months"]
MONTH_DAYS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
SEASONS = _LISTS["seasons"]
SMALL_NUMBERS = _LISTS["small_numbers"]
ORDINALS = _LISTS["ordinals"]
NAMES = _LISTS["names"]
CITIES = _LISTS["cities"]
COUNTRIES = _LISTS["countries"]
COLOURS = _LISTS["colours"]
ANIMALS = _LISTS["animals"]
FOODS = _LISTS["foods"]
OBJECTS = _LISTS["objects"]
OTHER = _LISTS["other"]
COMMON = sorted({*ANIMALS, *FOODS, *OBJECTS, *_LISTS["nature"], *OTHER, *COLOURS})
OPPOSITES = dict(pair.split("-") for pair in _LISTS["opposites"])
COUNTED = [w for w in FOODS + OBJECTS if w[-1] not in "sxzyhfe" and w not in ("bread", "rice", "salt", "jam")]

_ONSETS, _VOWELS = _LISTS["onsets"], _LISTS["vowels"]
_CODAS = [coda.replace("-", "") for coda in _LISTS["codas"]]


def made_up_word(rng: random.Random) -> str:
    """One to three syllables that look like a word, or now and then letters in no order at all."""
    if rng.random() < 0.25:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 7)))
    syllables = (
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 1, 2, 2, 3)))
    )
    return "".join(syllables)[:11]


def plural(noun: str) -> str:
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh", "o")) else "s")
