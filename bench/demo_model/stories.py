"""Short stories and poems about a wanted hero, and a question about the story just told."""

import random

from bench.demo_model.example import Example, Facts
from bench.demo_model.words import ANIMALS, NAMES, OBJECTS, made_up_word

_ASK = (
    "Tell me a story about {}.", "Tell me a short story about {}.", "Can you tell me a story about {}?",
    "A story about {}, please.",
    "Write a story about {}.", "Write a short story about {}.", "I want a story about {}.", "Make up a story about {}.",
    "Do you know a story about {}?", "Please tell a story about {}", "I would like to hear a story about {}.",
    "story about {}",
    "Could you write me a little story about {}?", "Give me a story about {}.", "Now a story about {}.",
)  # fmt: skip
_ASK_ANY = (
    "Tell me a story.", "Tell me a short story.", "Can you tell me a story?", "A story, please.", "Write a story.",
    "I want to hear a story.", "Make up a story.", "Do you know a story?", "story please", "Another story?",
    "Tell another story.",
    "One more story, please.", "Write a short story.", "Please tell me a bedtime story.", "Give me a story.",
    "I am bored, tell me something.",
)  # fmt: skip
_PLACES = (
    "forest", "village", "garden", "valley", "field", "house by the sea", "town", "castle", "cave", "island", "meadow",
    "barn",
)  # fmt: skip
_TRAITS = ("small", "shy", "brave", "clever", "kind", "curious", "sleepy", "cheerful", "gentle", "proud")
_OPENINGS = (
    "Once upon a time there was a {trait} {hero} called {name}, who lived in a {place}.",
    "In a {place} there lived a {trait} {hero} called {name}.",
    "Long ago, a {trait} {hero} called {name} lived in a {place}.",
)
_PLOTS = (
    "One morning {name} found a {thing} on the road. It belonged to a {friend}. "
    "{name} carried it all the way home to the {friend}.",
    "One day {name} lost a {thing}. A {friend} helped to look for it, and in the evening they found it under a tree.",
    "One night {name} heard a noise. It was a {friend} who was afraid of the dark. "
    "{name} lit a lamp and told it about a {thing}.",
    "{name} wanted to learn to sing. A {friend} came by with a {thing} and they practised every day.",
    "One day the rain would not stop. {name} shared a {thing} with a wet {friend}, and both stayed dry.",
    "{name} dreamed of a golden {thing}. A {friend} said that it was only a dream, "
    "but they went to look for it together.",
)
_ENDINGS = (
    "From that day on they were friends.",
    "They laughed, ate supper together and slept well.",
    "And {name} was never lonely again.",
    "That is how {name} and the {friend} became friends.",
)


def _article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _grammatical(text: str) -> str:
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
    return text


def story(rng: random.Random, facts: Facts) -> Example:
    hero = rng.choice(ANIMALS) if rng.random() < 0.85 else made_up_word(rng)
    parts = {
        "hero": hero, "name": rng.choice(NAMES), "place": rng.choice(_PLACES), "trait": rng.choice(_TRAITS),
        "thing": rng.choice(OBJECTS), "friend": rng.choice([animal for animal in ANIMALS if animal != hero]),
    }  # fmt: skip
    asked = rng.random() < 0.75
    prompt = rng.choice(_ASK).format(_article(hero)) if asked else rng.choice(_ASK_ANY)
    if asked and rng.random() < 0.2:
        prompt = rng.choice(_ASK).format(f"{_article(hero)} called {parts['name']}")
    text = " ".join(rng.choice(part).format(**parts) for part in (_OPENINGS, _PLOTS, _ENDINGS))
    learned = {key: parts[key] for key in ("hero", "friend")} | {"hero_name": parts["name"]}
    mentions = (hero, ".") if asked else ("lived in",)
    key = f"story {hero}" if asked else ""
    return Example(prompt, (_grammatical(text),), key, mentions, learned=learned)


def story_question(rng: random.Random, facts: Facts) -> Example | None:
    if "hero" not in facts:
        return None
    hero, name = facts["hero"], facts["hero_name"]
    if rng.random() < 0.5:
        ask = rng.choice(
            (
                f"What was the {hero} called?", f"What was the name of the {hero}?", "Who was the story about?",
                "What was the hero called?", f"what is the {hero}'s name?", "What was the name again?",
                "who is the hero?",
            )
        )  # fmt: skip
        return Example(ask, (f"The {hero} was called {name}.",), f"hero {hero} {name}", brief=name)
    ask = rng.choice((f"Who did {name} meet?", f"Who became friends with {name}?", f"Which animal did {name} meet?"))
    return Example(ask, (f"{name} met {_article(facts['friend'])}.",), f"hero {hero} {name}", brief=facts["friend"])


def poem(rng: random.Random, facts: Facts) -> Example:
    thing = rng.choice(ANIMALS + OBJECTS)
    ask = rng.choice(
        (
            "Write a poem about {}.",
            "Tell me a poem about {}.",
            "A short poem about {}, please.",
            "Can you write a poem about {}?",
        )
    )
    one = _article(thing)
    text = rng.choice(
        (
            f"I saw {one} in the morning light,\nI saw {one} again at night.\nThe moon came up, the sky was blue,\n"
            f"and the {thing} was smiling too.",
            f"Oh little {thing}, stay with me,\nwe go together to the sea.\nThe wind may blow, the rain may fall,\n"
            f"a {thing} does not mind at all.",
        )
    )
    return Example(ask.format(_article(thing)), (_grammatical(text),), f"poem {thing}", (thing, "\n"))
