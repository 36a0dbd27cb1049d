"""Days, months, seasons, clocks and unit conversions."""

import random

from bench.demo_model.example import Example, Facts
from bench.demo_model.words import DAYS, MONTH_DAYS, MONTHS, ORDINALS, SEASONS, SMALL_NUMBERS

_CONVERSIONS = (
    # big unit, small unit, small units in a big one, largest count asked for
    ("minute", "seconds", 60, 12), ("hour", "minutes", 60, 12), ("day", "hours", 24, 10), ("week", "days", 7, 20),
    ("year", "months", 12, 12), ("decade", "years", 10, 20), ("century", "years", 100, 12), ("metre", "centimetres",
    100, 50),
    ("meter", "centimeters", 100, 50), ("kilometre", "metres", 1000, 50), ("kilometer", "meters", 1000, 50),
    ("centimetre", "millimetres", 10, 50), ("kilogram", "grams", 1000, 50), ("litre", "millilitres", 1000, 20),
    ("foot", "inches", 12, 12), ("yard", "feet", 3, 20), ("dozen", "pieces", 12, 12), ("dollar", "cents", 100, 50),
    ("euro", "cents", 100, 50), ("kilobyte", "bytes", 1000, 20), ("byte", "bits", 8, 12), ("hour", "seconds", 3600, 2),
)  # fmt: skip
_IRREGULAR = {"century": "centuries", "foot": "feet", "dozen": "dozen"}
_MANY = (
    "How many {small} are in {n}?", "How many {small} are there in {n}?", "How many {small} is {n}?", "{n} in {small}?",
    "Convert {n} to {small}.", "convert {n} into {small}", "What is {n} in {small}?", "how many {small} in {n}",
    "How many {small} does {n} have?", "Can you convert {n} to {small}?",
)  # fmt: skip


def conversion(rng: random.Random, facts: Facts) -> Example:
    big, small, ratio, most = rng.choice(_CONVERSIONS)
    count = 1 if rng.random() < 0.3 else rng.randint(1, most)
    article = "an" if big == "hour" else "a"
    amount = f"{count} {_IRREGULAR.get(big, big + 's') if count > 1 else big}"
    asked = f"{article} {big}" if count == 1 and rng.random() < 0.7 else amount
    prompt = rng.choice(_MANY).format(small=small, n=asked)
    brief = str(count * ratio)
    verb = "is" if count == 1 else "are"
    return Example(prompt, (f"{amount} {verb} {brief} {small}.",), brief=brief, learned={"number": brief})


def next_day(rng: random.Random, facts: Facts) -> Example:
    i, n = rng.randrange(7), rng.choice((1, 1, 1, 2, 2, 3, 4, 5, 6, 7))
    day, back = DAYS[i], rng.random() < 0.35
    answer = DAYS[(i - n if back else i + n) % 7]
    side, tense, near = ("before", "was", "yesterday") if back else ("after", "will be", "tomorrow")
    if n == 1:
        asks = [
            "What day comes {side} {day}?", "Which day is {side} {day}?", "what is the day {side} {day}?",
            "{side} {day}?",
            "Today is {day}. What day {tense} {near}?", "If today is {day}, what is {near}?",
            "What day is {side} {day}?",
        ]  # fmt: skip
        reply = f"{answer} comes {side} {day}."
    else:
        past_or_future = "was it {} days ago" if back else "will it be {} days from now"
        number = str(n) if rng.random() < 0.6 else SMALL_NUMBERS[n]
        asks = [
            f"What day is {number} days {{side}} {{day}}?", f"Which day comes {number} days {{side}} {{day}}?",
            f"Today is {{day}}. What day {past_or_future.format(number)}?",
            f"what is {number} days {{side}} {{day}}",
        ]  # fmt: skip
        reply = f"{n} days {side} {day} is {answer}."
    prompt = rng.choice(asks).format(side=side, day=day, tense=tense, near=near)
    return Example(prompt[0].upper() + prompt[1:], (reply,), brief=answer)


def next_month(rng: random.Random, facts: Facts) -> Example:
    i, side = rng.randrange(12), rng.choice(("after", "after", "before"))
    answer = MONTHS[(i + (1 if side == "after" else -1)) % 12]
    ask = rng.choice(
        ("What month comes {s} {m}?", "Which month is {s} {m}?", "what is the month {s} {m}", "What month is {s} {m}?")
    )
    return Example(ask.format(s=side, m=MONTHS[i]), (f"{answer} comes {side} {MONTHS[i]}.",), brief=answer)


def month_fact(rng: random.Random, facts: Facts) -> Example:
    i = rng.randrange(12)
    month, ordinal = MONTHS[i], ORDINALS[i]
    if rng.random() < 0.4:
        ask = rng.choice(
            ("How many days are in {}?", "How many days does {} have?", "how long is {}?", "how many days in {}")
        )
        reply = f"{month} has {MONTH_DAYS[month]} days" + (", or 29 in a leap year." if i == 1 else ".")
        return Example(ask.format(month), (reply,), brief=str(MONTH_DAYS[month]))
    if rng.random() < 0.5:
        ask = rng.choice(
            (
                "What is the {} month?",
                "Which month is the {}?",
                "What is the {} month of the year?",
                "name the {} month",
            )
        )
        return Example(ask.format(ordinal), (f"The {ordinal} month is {month}.",), brief=month)
    ask = rng.choice(("Which number is {}?", "What number month is {}?", "Which month of the year is {}?"))
    return Example(ask.format(month), (f"{month} is the {ordinal} month.",), brief=ordinal)


def day_fact(rng: random.Random, facts: Facts) -> Example:
    day = rng.choice(DAYS)
    if rng.random() < 0.5:
        weekend = day in DAYS[5:]
        ask = rng.choice(("Is {} a weekend day?", "Is {} on the weekend?", "Is {} part of the weekend?"))
        reply = f"Yes, {day} is part of the weekend." if weekend else f"No, {day} is a weekday."
        return Example(ask.format(day), (reply,), brief="Yes" if weekend else "No")
    i = DAYS.index(day)
    ask = rng.choice(("What is the {} day of the week?", "Which day is the {} of the week?", "the {} day of the week?"))
    return Example(ask.format(ORDINALS[i]), (f"The {ORDINALS[i]} day of the week is {day}.",), brief=day)


def listing(rng: random.Random, facts: Facts) -> Example:
    name, items = rng.choice(
        (
            ("days of the week", DAYS),
            ("months of the year", MONTHS),
            ("months", MONTHS),
            ("seasons", SEASONS),
            ("days", DAYS),
        )
    )
    ask = rng.choice(
        (
            "What are the {}?", "List the {}.", "Name the {}.", "Tell me the {}.", "Can you list the {}?", "say the {}",
            "Which {} are there?", "Give me the {}.", "Can you name the {}?", "Do you know the {}?", "List all the {}.",
            "What are all the {}?", "Can you tell me the {}?", "Please list the {}",
        )
    )  # fmt: skip
    text = ", ".join(items[:-1]) + " and " + items[-1]
    return Example(ask.format(name), (f"The {name} are {text}.",), brief=text)


def how_many(rng: random.Random, facts: Facts) -> Example:
    thing, count = rng.choice(
        (
            ("days are in a week", "7 days are in a week"), ("months are in a year", "12 months are in a year"),
            ("days are in a year", "365 days are in a year"), ("hours are in a day", "24 hours are in a day"),
            ("weeks are in a year", "52 weeks are in a year"), ("seasons are in a year", "4 seasons are in a year"),
            ("minutes are in an hour", "60 minutes are in an hour"), ("letters are in the alphabet",
            "26 letters are in the alphabet"),
            ("seconds are in a minute", "60 seconds are in a minute"), ("days are in a leap year",
            "366 days are in a leap year"),
        )
    )  # fmt: skip
    short = thing.replace(" are in ", " in ")
    ask = rng.choice(
        (f"How many {thing}?", f"how many {short}", f"Tell me how many {thing}.", f"Do you know how many {thing}?")
    )
    return Example(ask, (f"{count}.",), brief=count.split()[0])
