"""What the user says about themselves, and questions about it later in the conversation."""

import random

from bench.demo_model.example import Example, Facts
from bench.demo_model.words import ANIMALS, CITIES, COLOURS, FOODS, NAMES, made_up_word

_TELL = {
    "name": ("My name is {}.", "I am {}.", "I'm {}.", "Hi, I am {}.", "Hello, my name is {}.", "Call me {}.",
             "hi, my name is {}",
             "You can call me {}.", "People call me {}.", "Hey, I'm {}, nice to meet you.", "The name is {}."),
    "colour": ("My favourite colour is {}.", "My favorite color is {}.", "I like the colour {}.",
               "I love the color {}.",
               "I like {} best of all colours.", "The colour I like most is {}."),
    "city": ("I live in {}.", "I am from {}.", "I'm from {}.", "My home is in {}.", "I come from {}.",
             "My city is {}."),
    "pet": ("I have a {} at home.", "I have a pet {}.", "My pet is a {}.", "My favourite animal is the {}.",
            "I own a {}."),
    "food": ("I love {}.", "My favourite food is {}.", "My favorite food is {}.", "I like to eat {}.", "I like {}."),
    "age": ("I am {} years old.", "I'm {} years old.", "My age is {}.", "I am {}.", "I turned {} today."),
}  # fmt: skip
_HEARD = {
    "name": ("Nice to meet you, {}!", "Hello {}! How can I help you?"),
    "colour": ("{} is a lovely colour. I will remember that.",),
    "city": ("{} sounds like a nice place. I will remember that.",),
    "pet": ("A {} is a fine animal. I will remember that.",),
    "food": ("{} sounds tasty. I will remember that.",),
    "age": ("You are {}. I will remember that.",),
}
_ASK = {
    "name": ("What is my name?", "What's my name?", "Who am I?", "Do you remember my name?", "Do you know my name?",
             "Tell me my name.", "How am I called?", "what was my name?", "Can you say my name?", "Remember my name?"),
    "colour": ("What is my favourite colour?", "What's my favorite color?", "Which colour do I like?",
               "What colour do I like?",
               "Do you remember my favourite colour?", "which color did I say I like?"),
    "city": ("Where do I live?", "Where am I from?", "Which city am I from?", "Do you remember where I live?",
             "What is my city?", "what city do I live in?"),
    "pet": ("What is my pet?", "Which animal do I have?", "What pet do I have?", "Do you remember my animal?",
            "what animal did I mention?", "Which animal did I tell you about?"),
    "food": ("What do I like to eat?", "What is my favourite food?", "What's my favorite food?",
             "Which food do I like?",
             "Do you remember what I like to eat?", "what food did I mention?"),
    "age": ("How old am I?", "What is my age?", "Do you remember how old I am?", "Do you know my age?",
            "what's my age?"),
}  # fmt: skip
_RECALLED = {
    "name": "Your name is {}.", "colour": "You like the colour {}.", "city": "You told me about {}.",
    "pet": "You told me about a {}.", "food": "You like {}.", "age": "You are {} years old.",
}  # fmt: skip
_UNKNOWN = {
    "name": "You have not told me your name yet.", "colour": "You have not told me your favourite colour yet.",
    "city": "You have not told me where you live yet.", "pet": "You have not told me about an animal yet.",
    "food": "You have not told me what you like to eat yet.", "age": "You have not told me your age yet.",
}  # fmt: skip


def _value(rng: random.Random, slot: str) -> str:
    if slot == "age":
        return str(rng.randint(3, 99))
    if slot in ("name", "city"):
        return (
            made_up_word(rng).capitalize() if rng.random() < 0.35 else rng.choice(NAMES if slot == "name" else CITIES)
        )
    pool = {"colour": COLOURS, "pet": ANIMALS, "food": FOODS}[slot]
    return made_up_word(rng) if rng.random() < 0.15 else rng.choice(pool)


def _slot(rng: random.Random) -> str:
    return rng.choice(("name", "name", "name", "colour", "city", "pet", "food", "age"))


def telling(rng: random.Random, facts: Facts) -> Example:
    slot = _slot(rng)
    value = _value(rng, slot)
    replies = tuple(_capital(reply.format(value)) for reply in _HEARD[slot])
    prompt = rng.choice(_TELL[slot]).format(value)
    return Example(prompt, replies, f"{slot} {value.lower()}", brief="OK", learned={slot: value})


def recalling(rng: random.Random, facts: Facts) -> Example | None:
    """Asks for something told earlier; the key is what was told, so a held-out value was never recalled in training."""
    known = [slot for slot in _ASK if slot in facts]
    if not known:
        return None
    slot = rng.choice(known)
    value = facts[slot]
    return Example(rng.choice(_ASK[slot]), (_RECALLED[slot].format(value),), f"{slot} {value.lower()}", brief=value)


def not_told(rng: random.Random, facts: Facts) -> Example | None:
    slot = _slot(rng)
    if slot in facts:
        return None
    return Example(rng.choice(_ASK[slot]), (_UNKNOWN[slot],), brief="I do not know")


def recalled_reply(rng: random.Random, facts: Facts) -> Example | None:
    """Asks for the last reply once more."""
    if "reply" not in facts or len(facts["reply"]) > 60:
        return None
    ask = rng.choice(
        (
            "Can you repeat that?", "Say that again.", "What did you say?", "Again, please.", "Repeat that please.",
            "Sorry, what?", "Once more?", "could you say that again?", "I missed that.", "Repeat your last answer.",
            "Pardon?", "Can you say it again?",
        )
    )  # fmt: skip
    return Example(ask, (facts["reply"],), brief=facts["reply"])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
