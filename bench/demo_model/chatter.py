"""Greetings, who is speaking, thanks and goodbyes, small facts, and the polite refusal of everything else."""

import random
import tomllib
from pathlib import Path

from bench.demo_model.example import Example, Facts
from bench.demo_model.words import ANIMALS, CITIES, COUNTRIES, FOODS, NAMES, OBJECTS, OPPOSITES, OTHER, made_up_word

_PHRASES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_ABLE = "small sums, days and months, units, spelling, sorting, counting and short stories"
UNKNOWABLE = _PHRASES["refusals"]["unknowable"]["reply"].format(able=_ABLE)
_FACTS = [(subject, kind, answer) for kind, pairs in _PHRASES["facts"].items() for subject, answer in pairs]
_GREETINGS = ("hello", "hello", "good_morning", "good_evening", "good_afternoon", "how_are_you", "how_are_you")
_IDENTITY = (
    "who_are_you", "who_are_you", "what_can_you_do", "what_can_you_do", "how_big", "who_made_you", "what_is_hocket",
    "are_you_human",
)  # fmt: skip


def _exchange(rng: random.Random, name: str) -> Example:
    exchange = _PHRASES["small_talk"][name]
    return Example(rng.choice(exchange["prompts"]), tuple(reply.format(able=_ABLE) for reply in exchange["replies"]))


def small_talk(rng: random.Random, facts: Facts) -> Example:
    return _exchange(rng, rng.choice(list(_PHRASES["small_talk"])))


def greeting(rng: random.Random, facts: Facts) -> Example:
    return _exchange(rng, rng.choice(_GREETINGS))


def identity(rng: random.Random, facts: Facts) -> Example:
    return _exchange(rng, rng.choice(_IDENTITY))


def fact(rng: random.Random, facts: Facts) -> Example:
    if rng.random() < 0.4:
        pair = list(rng.choice(list(OPPOSITES.items())))
        rng.shuffle(pair)
        one, other = pair
        ask = rng.choice(
            (
                "What is the opposite of {}?", "opposite of {}?", "The opposite of {}?", "Tell me the opposite of {}.",
                "{} - opposite?",
            )
        )  # fmt: skip
        return Example(ask.format(one), (f"The opposite of {one} is {other}.",), brief=other)
    subject, kind, answer = rng.choice(_FACTS)
    subject_first = subject[0].upper() + subject[1:]
    reply = _PHRASES["fact_replies"][kind].format(s=subject_first, a="no" if answer == "0" else answer)
    return Example(rng.choice(_PHRASES["fact_questions"][kind]).format(subject), (reply,), brief=answer)


def refusal(rng: random.Random, facts: Facts) -> Example:
    """What the model cannot do; the key is the wording, so held-out refusals are wordings never seen."""
    refused = _PHRASES["refusals"][rng.choice(("unknowable", "unknowable", "too_hard", "unclear"))]
    wording, reply = rng.choice(refused["prompts"]), refused["reply"].format(able=_ABLE)
    prompt = wording.format(
        country=rng.choice(COUNTRIES), city=rng.choice(CITIES), city2=rng.choice(CITIES), name=rng.choice(NAMES),
        food=rng.choice(FOODS), object=rng.choice(OBJECTS), animal=rng.choice(ANIMALS), adjective=rng.choice(OTHER),
        word=made_up_word(rng), word2=made_up_word(rng), number=rng.randint(2, 99), year=rng.randint(1500, 2030),
        big=rng.randint(150, 99999), big2=rng.randint(150, 99999),
    )  # fmt: skip
    return Example(prompt, (reply,), f"refuse {wording}", (reply.split(".")[0],), brief="I do not know")
