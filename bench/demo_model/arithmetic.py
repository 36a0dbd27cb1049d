"""Sums, differences, products, quotients, comparisons, counting; word problems; going on from the last result."""

import random

from bench.demo_model.example import Example, Facts
from bench.demo_model.words import COUNTED, NAMES, SMALL_NUMBERS, plural

_ASK = (
    "What is {}?", "What's {}?", "what does {} equal?", "How much is {}?", "Calculate {}.", "Compute {}", "{}", "{} =",
    "{} = ?", "{}?", "Tell me {}.", "Can you work out {}?", "Can you calculate {} for me?", "Please solve {}.",
    "Do you know what {} is?", "I need {}.", "Give me {}.", "What do you get for {}?", "What is the result of {}?",
    "And {}?", "and what is {}?", "Now {}.", "How about {}?", "What about {}?", "Could you tell me what {} is?",
    "Solve {}.", "Quick, {}!", "Math: {}", "What would {} be?", "Evaluate {}.",
)  # fmt: skip
_SIGNS = {
    "+": (
        "{} + {}",
        "{}+{}",
        "{} plus {}",
        "{} plus {}",
        "the sum of {} and {}",
        "{} and {} together",
        "{} added to {}",
    ),
    "-": ("{} - {}", "{}-{}", "{} minus {}", "{} minus {}", "{} take away {}", "the difference between {} and {}"),
    "*": (
        "{} * {}",
        "{}*{}",
        "{} x {}",
        "{} times {}",
        "{} times {}",
        "{} multiplied by {}",
        "the product of {} and {}",
    ),
    "/": ("{} / {}", "{}/{}", "{} divided by {}", "{} divided by {}", "{} over {}"),
}
_VERBS = {
    "+": ("Add {0} and {1}.", "Add {0} to {1}", "Can you add {0} and {1}?", "Sum {0} and {1}."),
    "-": ("Subtract {1} from {0}.", "Take {1} from {0}", "Can you subtract {1} from {0}?"),
    "*": ("Multiply {0} by {1}.", "Multiply {0} and {1}", "Can you multiply {0} by {1}?"),
    "/": ("Divide {0} by {1}.", "Can you divide {0} by {1}?", "How many times does {1} go into {0}?"),
}
_FOLLOW = {
    "+": ("Add {} to that.", "plus {}?", "And plus {}?", "Now add {}.", "And {} more?", "add {}"),
    "-": ("Subtract {} from that.", "minus {}?", "And minus {}?", "Now take away {}.", "And {} less?", "subtract {}"),
}


def _operands(rng: random.Random, sign: str) -> tuple[int, int]:
    if sign == "*":
        return rng.randint(0, 12), rng.randint(0, 12)
    if sign == "/":
        divisor = rng.randint(1, 12)
        return divisor * rng.randint(0, 12), divisor
    top = rng.choice((10, 20, 50, 99, 99, 99, 99))
    a, b = rng.randint(0, top), rng.randint(0, top)
    return (max(a, b), min(a, b)) if sign == "-" and rng.random() < 0.85 else (a, b)


def result_of(a: int, sign: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a // b


def _solved(prompt: str, a: int, sign: str, b: int) -> Example:
    # products and quotients are facts, not procedures: only their wording can be held out, not the operands
    key = f"{a}{sign}{b}" if sign in "+-" else f"{a}{sign}{b} {prompt.lower()}"
    result = result_of(a, sign, b)
    return Example(prompt, (f"{a} {sign} {b} = {result}.",), key, brief=str(result), learned={"number": str(result)})


def calculation(rng: random.Random, facts: Facts) -> Example:
    sign = rng.choice("++++---***/")
    a, b = _operands(rng, sign)
    texts = (str(a), str(b))
    if max(a, b) <= 20 and rng.random() < 0.25:
        texts = (SMALL_NUMBERS[a], SMALL_NUMBERS[b])
    return _solved(asked(rng, sign, texts), a, sign, b)


def asked(rng: random.Random, sign: str, operands: tuple[str, str]) -> str:
    if rng.random() < 0.2:
        return rng.choice(_VERBS[sign]).format(*operands)
    return rng.choice(_ASK).format(rng.choice(_SIGNS[sign]).format(*operands))


def double_or_half(rng: random.Random, facts: Facts) -> Example:
    if rng.random() < 0.5:
        a = rng.randint(1, 50)
        thing = rng.choice(("double {}", "twice {}", "the double of {}")).format(a)
        return _solved(rng.choice(_ASK).format(thing), a, "*", 2)
    a = 2 * rng.randint(1, 50)
    thing = rng.choice(("half of {}", "half {}", "the half of {}")).format(a)
    return _solved(rng.choice(_ASK).format(thing), a, "/", 2)


def follow_up(rng: random.Random, facts: Facts) -> Example | None:
    """A sum that starts from the last result."""
    if "number" not in facts or not 0 <= int(facts["number"]) < 150:
        return None
    a, sign = int(facts["number"]), rng.choice("+-")
    b = rng.randint(1, 20) if sign == "+" else rng.randint(0, min(a, 20))
    return _solved(rng.choice(_FOLLOW[sign]).format(b), a, sign, b)


def word_problem(rng: random.Random, facts: Facts) -> Example:
    things, name = plural(rng.choice(COUNTED)), rng.choice(NAMES)
    who = rng.choice(("I have", f"{name} has", "There are", "You have", "We have"))
    how_many = rng.choice((f"How many {things} is that?", f"How many {things} are there now?", "How many is that?"))
    if rng.random() < 0.5:
        a, b = _operands(rng, "+")
        change = rng.choice(("get {} more", "find {} more", "buy {} more", "{} more arrive")).format(b)
        sign = "+"
    else:
        a, b = sorted((rng.randint(1, 60), rng.randint(0, 60)), reverse=True)
        change = rng.choice(("lose {}", "give away {}", "take away {}", "{} are gone")).format(b)
        how_many = rng.choice((how_many, f"How many {things} are left?", "How many are left?"))
        sign = "-"
    joined = change if change[0].isdigit() else rng.choice(("I ", "we ", "you ")) + change
    prompt = f"{who} {a} {things} and {joined}. {how_many}"
    result = result_of(a, sign, b)
    reply = f"{a} {sign} {b} = {result}, so {result} {things}."
    return Example(prompt, (reply,), f"{a}{sign}{b}", brief=str(result), learned={"number": str(result)})


def comparison(rng: random.Random, facts: Facts) -> Example:
    a, b = rng.sample(range(100), 2)
    word, pick = rng.choice(
        (("larger", max), ("bigger", max), ("greater", max), ("more", max), ("smaller", min), ("less", min))
    )
    ask = rng.choice(("Which is {w}, {a} or {b}?", "What is {w}: {a} or {b}?", "Which number is {w}, {a} or {b}?"))
    reply = f"{pick(a, b)} is {word}."
    return Example(ask.format(w=word, a=a, b=b), (reply,), f"{a}<>{b}", brief=str(pick(a, b)))


def parity(rng: random.Random, facts: Facts) -> Example:
    a = rng.randint(0, 199)
    word = "even" if a % 2 == 0 else "odd"
    ask = rng.choice(("Is {} even or odd?", "Is {} odd or even?", "is the number {} even or odd", "{}: even or odd?"))
    return Example(ask.format(a), (f"{a} is {word}.",), f"parity {a}", brief=word)


def counting(rng: random.Random, facts: Facts) -> Example:
    first, step = rng.choice((1, 1, 1, rng.randint(0, 40))), rng.choice((1, 1, 1, -1))
    last = first + rng.randint(3, 12)
    if step < 0:
        ask = rng.choice(
            ("Count down from {b} to {a}.", "Count backwards from {b} to {a}", "count back from {b} to {a}")
        )
    elif first == 1:
        ask = rng.choice(("Count to {b}.", "Can you count to {b}?", "count up to {b}", "Count from {a} to {b}."))
    else:
        ask = rng.choice(
            ("Count from {a} to {b}.", "Can you count from {a} to {b}?", "List the numbers from {a} to {b}.")
        )
    numbers = ", ".join(str(n) for n in list(range(first, last + 1))[::step])
    return Example(ask.format(a=first, b=last), (f"{numbers}.",), f"count {first} {last} {step}", brief=numbers)
