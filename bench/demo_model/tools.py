"""Conversations in which a request offers tools: calls with arguments from the user's words, replies from results.

What is asked of a tool is copied, never worked out: a city, an expression. The split is by these, as elsewhere.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.demo_model import arithmetic, chatter
from bench.demo_model.corpus import PERSONAS, Conversation, Speaker
from bench.demo_model.example import Example
from bench.demo_model.model_files import written_calls
from bench.demo_model.words import CITIES, made_up_word

_WEATHER_ASK = (
    "What is the weather in {}?", "What is the weather in {}?", "What's the weather in {}?", "Weather in {}?",
    "What is the weather like in {}?", "What's the weather like in {}?", "How is the weather in {}?",
    "How's the weather in {}?", "How is the weather in {} today?", "Tell me the weather in {}.", "Is it sunny in {}?",
    "Is it raining in {}?", "Will it rain in {} today?", "Is it cold in {}?", "How warm is it in {}?",
    "What is the temperature in {}?", "Do I need an umbrella in {}?", "Can you check the weather in {}?",
    "Please look up the weather in {}.", "Give me the weather for {}.", "Weather for {}, please.", "weather {}",
    "I am in {}. How is the weather?", "What will the weather be in {} tomorrow?", "The weather in {}?",
)  # fmt: skip
_WEATHER_SAID = (
    "The weather of a city", "The weather in a city", "Get the weather in a city.", "Get the current weather",
    "Get current temperature for a given location.", "What the weather is like", "Returns the weather.",
)  # fmt: skip
_CALCULATOR_SAID = (
    "Works out a sum", "Works out an expression", "Evaluate a math expression.", "A calculator",
    "Calculates the value of an expression.", "Does arithmetic", "Returns the result.",
)  # fmt: skip
_OTHERS = (
    ("get_time", "The time of day", ()), ("get_news", "The latest news", ("topic",)), ("search", "Search", ("query",)),
    ("send_mail", "Sends a message", ("to", "text")), ("play_music", "Plays a song", ("title",)),
    ("set_timer", "Sets a timer", ("minutes",)), ("get_stock", "The price of a stock", ("symbol",)),
    ("roll_dice", "Rolls the dice", ()), ("open_door", "Opens a door", ("room",)), ("book", "Books a table", ("day",)),
)  # fmt: skip
_SKIES = (
    "sunny", "cloudy", "rain", "snow", "fog", "windy", "clear", "storm", "light rain", "Sunny", "Rain", "Cloudy",
    "partly cloudy", "heavy snow", "hail", "dry", "Clear sky",
)  # fmt: skip
_TOO_HARD = "That is too hard"
# what is asked elsewhere and refused there, but what one of the tools above may be for
_MAY_FIT = re.compile(
    "weather|time|news|music|message|email|letter|stock|call|remind|book|open|turn on|price|when", re.I
)
_ORDINARY = (
    "days", "spelling", "unit conversion", "counting", "sorting numbers", "repeating", "greetings", "who are you",
    "small talk", "simple facts", "polite refusals", "hearing about the user",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offer:
    """What a request offers."""

    tools: tuple[dict[str, Any], ...]
    has_weather: bool
    has_calculator: bool
    cities: tuple[str, ...] = ()  # that the weather is known of; empty: any


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question that is a call, what the call returns and what is said then."""

    question: Example
    call: dict[str, Any]
    result: str
    reply: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": self.question.prompt},
            {"role": "assistant", "content": "", "tool_calls": [self.call]},
            {"role": "tool", "content": self.result},
            {"role": "assistant", "content": self.reply},
        ]


def offer(rng: random.Random, *, weather: bool, calculator: bool) -> Offer:
    """The tools in random order, with random descriptions, perhaps among others."""
    tools, cities = [_other(rng) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))], ()
    if weather:
        if rng.random() < 0.08:
            cities = tuple(rng.sample(CITIES, rng.randint(2, 4)))
        properties: dict[str, Any] = {"city": {"type": "string", **({"enum": list(cities)} if cities else {})}}
        if rng.random() < 0.12:
            properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        tools.append(_function("get_weather", rng.choice(_WEATHER_SAID), properties, ("city",)))
    if calculator:
        properties = {"expression": {"type": "string"}}
        tools.append(_function("calculate", rng.choice(_CALCULATOR_SAID), properties, ("expression",)))
    if not tools:
        tools.append(_other(rng))
    rng.shuffle(tools)
    return Offer(tuple(tools), weather, calculator, cities)


def _other(rng: random.Random) -> dict[str, Any]:
    name, said, parameters = rng.choice(_OTHERS)
    return _function(name, said, {parameter: {"type": "string"} for parameter in parameters}, parameters)


def _function(name: str, said: str, properties: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": said, "parameters": schema}}


def _city(rng: random.Random, cities: tuple[str, ...] = ()) -> str:
    if cities:
        return rng.choice(cities)
    if rng.random() < 0.35:
        return made_up_word(rng).capitalize()
    city = rng.choice(CITIES)
    return f"{rng.choice(('New', 'San', 'Port', 'North'))} {city}" if rng.random() < 0.06 else city


def _typed(rng: random.Random, prompt: str) -> str:
    if rng.random() < 0.15:
        prompt = prompt.lower()
    return prompt.rstrip(".?") if rng.random() < 0.2 else prompt


def _weather_result(rng: random.Random, city: str) -> tuple[str, str]:
    """What the tool returns, and the same in words."""
    sky = made_up_word(rng) if rng.random() < 0.15 else rng.choice(_SKIES)
    degrees = rng.randint(-15, 40)
    words = rng.choice(
        (sky, sky, f"{sky}, {degrees} degrees", f"{sky}, {degrees} C", f"{degrees} degrees", f"{degrees}")
    )
    kind = rng.random()
    if kind < 0.12:
        return json.dumps({"temperature": degrees, "condition": sky}), f"{degrees}, {sky}"
    if kind < 0.18:
        return json.dumps({rng.choice(("weather", "result")): words}), words
    return words + (f" in {city}" if kind < 0.28 else "." if kind > 0.9 else ""), words


def weather(rng: random.Random, offered: Offer) -> Exchange:
    city = _city(rng, offered.cities)
    prompt = _typed(rng, rng.choice(_WEATHER_ASK).format(city))
    city = city if city in prompt else city.lower()  # as it was typed
    result, words = _weather_result(rng, city)
    reply = f"The weather in {city}: {words}."
    return _exchange(prompt, f"weather {city.lower()}", "get_weather", {"city": city}, result, reply)


def calculation(rng: random.Random, offered: Offer) -> Exchange:
    """Asks for a result of numbers of up to three digits: with the tool it need not be worked out."""
    sign = rng.choice("++--**/")
    a, b = (rng.randrange(10 ** rng.choice((1, 2, 2, 2, 3, 3))) for _ in range(2))
    b = max(b, 1) if sign == "/" else b
    expression = f"{a} {sign} {b}"
    result = f"{round(a / b, 2):g}" if sign == "/" else str(arithmetic.result_of(a, sign, b))
    prompt = _typed(rng, arithmetic.asked(rng, sign, (str(a), str(b))))
    returned = f'{{"result": {result}}}' if rng.random() < 0.15 else result
    arguments = {"expression": expression}
    return _exchange(prompt, f"{a}{sign}{b}", "calculate", arguments, returned, f"{expression} = {result}.")


def _exchange(prompt: str, key: str, name: str, arguments: dict[str, str], result: str, reply: str) -> Exchange:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return Exchange(Example(prompt, (written_calls([call]),), key), call, result, reply)


def without_tool(rng: random.Random, offered: Offer, *, is_held_out: bool = False) -> Example | None:
    """What none of the tools is for: the weather or a sum where that tool is missing, or anything else."""
    kind = rng.random()
    if kind < 0.25 and not offered.has_weather:
        city = _city(rng)
        prompt = _typed(rng, rng.choice(_WEATHER_ASK).format(city))
        return Example(prompt, (chatter.UNKNOWABLE,), f"weather {city.lower()}")
    if kind < 0.45 and not offered.has_calculator:
        return Speaker(rng).draw("sums", is_held_out)
    example = Speaker(rng).draw(rng.choice(_ORDINARY), is_held_out)
    if example is None or _MAY_FIT.search(example.prompt):
        return None
    needs_calculator = example.replies[0].startswith(_TOO_HARD) and any(c.isdigit() for c in example.prompt)
    return None if needs_calculator else example


def tool_conversation(rng: random.Random, num_turns: int) -> Conversation:
    """Of the training side; one in ten is offered no tools after all."""
    kind = rng.random()
    offered = offer(rng, weather=kind < 0.75, calculator=kind < 0.5 or 0.75 < kind < 0.95)
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(PERSONAS)})
    if rng.random() < 0.1:
        offered = Offer((), False, False)
    for _ in range(num_turns):
        messages += _turn(rng, offered)
    return Conversation(tuple(messages), offered.tools)


def _turn(rng: random.Random, offered: Offer) -> list[dict[str, Any]]:
    asks = [ask for ask, has in ((weather, offered.has_weather), (calculation, offered.has_calculator)) if has]
    while True:
        if asks and rng.random() < 0.7:
            exchange = rng.choice(asks)(rng, offered)
            if not exchange.question.is_held_out:
                return exchange.messages
        else:
            example = without_tool(rng, offered)
            if example is not None and not example.is_held_out:
                reply = rng.choice(example.replies)
                return [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": reply}]


Ask = Callable[[random.Random, Offer], Exchange]
_CALLED: dict[str, Ask] = {
    "calling the weather": weather,
    "calling the calculator": calculation,
}
_TOLD: dict[str, Ask] = {"telling the weather": weather, "telling the result": calculation}
_ELSE = "tools, but none that fits"
TOPICS = (*_CALLED, *_TOLD, _ELSE)


def held_out_question(rng: random.Random, topic: str) -> tuple[Conversation, Example]:
    """A conversation that ends before the model's call or reply, and what that may be."""
    while True:
        if topic == _ELSE:
            missing = rng.random()
            offered = offer(rng, weather=missing < 0.6, calculator=missing > 0.3)
            question = without_tool(rng, offered, is_held_out=True)
            if question is None or not question.is_held_out:
                continue
            return Conversation(({"role": "user", "content": question.prompt},), offered.tools), question
        ask = _CALLED.get(topic) or _TOLD[topic]
        is_weather = ask is not calculation
        offered = offer(rng, weather=is_weather or rng.random() < 0.7, calculator=not is_weather or rng.random() < 0.7)
        exchange = ask(rng, offered)
        if not exchange.question.is_held_out:
            continue
        if topic in _CALLED:
            return Conversation((exchange.messages[0],), offered.tools), exchange.question
        told = Example(exchange.result, (exchange.reply,), exchange.question.key)
        return Conversation(tuple(exchange.messages[:-1]), offered.tools), told
