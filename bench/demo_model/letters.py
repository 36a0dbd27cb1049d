"""Spelling, counting letters, the alphabet, upper case, repeating, and sorting of words and numbers."""

import random
import string

from bench.demo_model.example import Example, Facts
from bench.demo_model.words import ANIMALS, CITIES, COLOURS, COMMON, FOODS, NAMES, OBJECTS, made_up_word

_SPELL = (
    "Spell {}.", "Spell the word {}.", "How do you spell {}?", "Can you spell {}?", "spell {} please",
    "Please spell {}",
    "How is {} spelled?", "Spell out {}.", "what are the letters of {}?", "Can you spell the word {} for me?",
    "how to spell {}", "Now spell {}.", "And {}? Spell it.", "I want you to spell {}.", "Which letters are in {}?",
)  # fmt: skip


def any_word(rng: random.Random) -> str:
    pool = rng.random()
    if pool < 0.4:
        return made_up_word(rng)
    word = rng.choice(COMMON) if pool < 0.85 else rng.choice(NAMES + CITIES)
    return word.capitalize() if rng.random() < 0.12 else word


def spelled(word: str) -> str:
    return "-".join(word.upper())


def _quoted(rng: random.Random, word: str) -> str:
    return rng.choice((word, word, word, f'"{word}"', f"'{word}'"))


def spelling(rng: random.Random, facts: Facts) -> Example:
    word = any_word(rng)
    if rng.random() < 0.18 and len(word) <= 7:
        ask = rng.choice(
            ("Spell {} backwards.", "Can you spell {} backwards?", "Reverse the word {}.", "what is {} backwards?")
        )
        text = f"{spelled(word)} backwards is {spelled(word[::-1])}."
        return Example(ask.format(_quoted(rng, word)), (text,), f"spell {word.lower()}", brief=spelled(word[::-1]))
    text = f"{spelled(word)}."
    return Example(rng.choice(_SPELL).format(_quoted(rng, word)), (text,), f"spell {word.lower()}", brief=spelled(word))


def letter_count(rng: random.Random, facts: Facts) -> Example:
    word = any_word(rng)
    kind, shown, quoted = rng.random(), spelled(word), _quoted(rng, word)
    if kind < 0.4:
        ask = rng.choice(("How many letters are in {}?", "How many letters does {} have?", "how long is the word {}?"))
        letters = f"{len(word)} letters" if len(word) > 1 else "1 letter"
        return Example(ask.format(quoted), (f"{shown}: {letters}.",), f"spell {word.lower()}", brief=str(len(word)))
    if kind < 0.7:
        letter = rng.choice(word.lower())
        count = word.lower().count(letter)
        ask = rng.choice(("How many {c}'s are in {w}?", 'How many "{c}" are in {w}?', "Count the letter {c} in {w}."))
        reply = f"{shown}: {count} times {letter.upper()}."
        return Example(ask.format(c=letter, w=quoted), (reply,), f"spell {word.lower()}", brief=str(count))
    which, letter = rng.choice((("first", word[0]), ("last", word[-1])))
    ask = rng.choice(("What is the {} letter of {}?", "Which is the {} letter of {}?", "What's the {} letter in {}?"))
    reply = f"The {which} letter of {word} is {letter.upper()}."
    return Example(ask.format(which, quoted), (reply,), f"spell {word.lower()}", brief=letter.upper())


def alphabet(rng: random.Random, facts: Facts) -> Example:
    if rng.random() < 0.2:
        ask = rng.choice(
            (
                "Say the alphabet.", "What is the alphabet?", "Can you say the alphabet?",
                "List the letters of the alphabet.",
                "Tell me the alphabet.", "Do you know the alphabet?", "Recite the alphabet", "Write the alphabet",
                "Give me the alphabet.", "alphabet please", "Now the alphabet!",
                "What are the letters of the alphabet?",
            )
        )  # fmt: skip
        letters = " ".join(string.ascii_uppercase)
        return Example(ask, (f"{letters}.",), brief=letters)
    i, side = rng.randrange(26), rng.choice(("after", "after", "before"))
    j = i + (1 if side == "after" else -1)
    letter = string.ascii_uppercase[i]
    shown = rng.choice((letter, letter.lower()))
    ask = rng.choice(("What letter comes {} {}?", "Which letter is {} {}?", "what is the letter {} {}"))
    if not 0 <= j < 26:
        return Example(ask.format(side, shown), (f"No letter comes {side} {letter}.",), brief="None")
    answer = string.ascii_uppercase[j]
    return Example(ask.format(side, shown), (f"{answer} comes {side} {letter}.",), brief=answer)


def echo(rng: random.Random, facts: Facts) -> Example:
    words = [any_word(rng) for _ in range(rng.choice((1, 1, 2, 3, 4)))]
    text = " ".join(words)
    if len(words) == 1 and rng.random() < 0.35:
        ask = rng.choice(
            ("Write {} in capital letters.", "{} in upper case?", "Make {} upper case.", "Write {} in capitals")
        )
        return Example(ask.format(text), (f"{text.upper()}.",), f"upper {text.lower()}", brief=text.upper())
    ask = rng.choice(
        (
            "Say {}.",
            "Repeat after me: {}",
            "Say: {}",
            "Repeat: {}",
            "Can you say {}?",
            'Say "{}".',
            "Please repeat {}.",
            "Write {}.",
        )
    )
    shown = text[0].upper() + text[1:]
    return Example(ask.format(text), (f"{shown}.",), f"say {text.lower()}", brief=text)


def _listed(rng: random.Random, items: list[str]) -> str:
    if rng.random() < 0.2:
        return " ".join(items)
    if rng.random() < 0.3:
        return ", ".join(items[:-1]) + " and " + items[-1]
    return ", ".join(items)


def word_sorting(rng: random.Random, facts: Facts) -> Example:
    pool = rng.choice((ANIMALS, FOODS, OBJECTS, COLOURS, COMMON, COMMON, NAMES))
    words = rng.sample(pool, rng.choice((2, 3, 3, 3, 4, 4, 5)))
    ask = rng.choice(
        (
            "Sort these words: {}", "Sort {}.", "Sort {} alphabetically.", "Put these words in alphabetical order: {}",
            "Put {} in alphabetical order.", "Order these words: {}", "Can you sort {}?", "Alphabetical order: {}",
            "Sort this list: {}", "Please sort these words alphabetically: {}", "Arrange {} alphabetically.",
            "Can you put these in order: {}?", "sort: {}",
        )
    )  # fmt: skip
    text = ", ".join(sorted(words))
    return Example(ask.format(_listed(rng, words)), (f"{text}.",), "sort " + " ".join(sorted(words)), brief=text)


def number_sorting(rng: random.Random, facts: Facts) -> Example:
    top = rng.choice((9, 20, 99, 99, 99))
    numbers = rng.sample(range(top + 1), rng.choice((2, 3, 3, 4, 4, 5, 6)))
    key = "order " + " ".join(map(str, sorted(numbers)))
    listed = _listed(rng, [str(n) for n in numbers])
    kind = rng.random()
    if kind < 0.25:
        word, pick = rng.choice((("largest", max), ("biggest", max), ("smallest", min)))
        ask = rng.choice(("Which is the {} of {}?", "What is the {} number: {}?", "Find the {} of {}."))
        return Example(ask.format(word, listed), (f"The {word} is {pick(numbers)}.",), key, brief=str(pick(numbers)))
    down = kind > 0.8
    ask = rng.choice(
        (
            "Sort {} from largest to smallest.", "Sort {} in descending order.", "Order from high to low: {}",
        ) if down else (
            "Sort these numbers: {}", "Sort {}.", "Sort the numbers {}.", "Order these numbers: {}", "Put {} in order.",
            "Sort {} from smallest to largest.", "Can you sort {}?", "Arrange {} from small to large.", "sort {}",
            "sort: {}",
            "Sort {} in ascending order.", "Please sort this list: {}",
        )
    )  # fmt: skip
    text = ", ".join(str(n) for n in sorted(numbers, reverse=down))
    return Example(ask.format(listed), (f"{text}.",), key, brief=text)
