"""Conversations for the demo model, drawn from a seed; what is asked in evaluation is never asked in training.

The split is by construction: every example has a key (operands, word, name, wording; see `Example.key`) whose checksum
says on which side it is. Training conversations draw only keys of one side, evaluation asks only keys of the other.

    python -m bench.demo_model.corpus [seed]     prints a few training conversations
"""

import random
import sys
from dataclasses import dataclass
from typing import Any

from bench.demo_model import arithmetic, chatter, letters, measures, memory, stories
from bench.demo_model.example import Example, Facts, Topic, is_held_out_key, normalised
from bench.demo_model.words import NAMES, made_up_word

TOPICS: dict[str, tuple[Topic, float]] = {
    "sums": (arithmetic.calculation, 17),
    "double and half": (arithmetic.double_or_half, 2),
    "going on from a result": (arithmetic.follow_up, 1),
    "word problems": (arithmetic.word_problem, 4),
    "comparing numbers": (arithmetic.comparison, 3),
    "even and odd": (arithmetic.parity, 2),
    "counting": (arithmetic.counting, 5),
    "unit conversion": (measures.conversion, 8),
    "days": (measures.next_day, 6),
    "months": (measures.next_month, 2),
    "facts about months": (measures.month_fact, 3),
    "facts about days": (measures.day_fact, 1),
    "lists of days and months": (measures.listing, 1),
    "how many in a": (measures.how_many, 1.5),
    "spelling": (letters.spelling, 9),
    "counting letters": (letters.letter_count, 6),
    "alphabet": (letters.alphabet, 4),
    "repeating": (letters.echo, 4),
    "sorting words": (letters.word_sorting, 6),
    "sorting numbers": (letters.number_sorting, 7),
    "hearing about the user": (memory.telling, 5),
    "remembering the user": (memory.recalling, 3),
    "not told yet": (memory.not_told, 2),
    "repeating the last reply": (memory.recalled_reply, 1),
    "stories": (stories.story, 2.5),
    "questions about the story": (stories.story_question, 1),
    "poems": (stories.poem, 0.7),
    "greetings": (chatter.greeting, 3),
    "who are you": (chatter.identity, 5),
    "small talk": (chatter.small_talk, 11),
    "simple facts": (chatter.fact, 5),
    "polite refusals": (chatter.refusal, 8),
}
_CONTEXTUAL = (
    "going on from a result",
    "remembering the user",
    "questions about the story",
    "repeating the last reply",
)
_CASE_MATTERS = ("repeating", "sorting words")
_TYPED_CARELESSLY = (
    "greetings",
    "who are you",
    "small talk",
    "simple facts",
    "polite refusals",
    "not told yet",
    "days",
)

PERSONAS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "You are hocket.", "Be polite.",
    "You are a chat bot.",
    "You are a helpful, honest and harmless assistant.", "Help the user.", "You are the demo model of hocket.",
    "Be nice.",
    "Answer the questions of the user.", "You are a teacher for children.", "Be kind and helpful.", "Be concise.",
    "You are a helpful assistant. Answer politely.", "You are talking to a child.", "You are a small language model.",
)  # fmt: skip
_BRIEF = (
    "Answer with the result only.", "Give only the result.", "Only give the answer, nothing else.",
    "Reply with the answer only.",
    "Answer with one word.", "Just the result, please.", "No explanations, only the result.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversation:
    """Alternating user and assistant messages after an optional system message, in OpenAI's shape.

    With tools there may be calls of them, each call's result between the call and the reply.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


class Speaker:
    """Draws the turns of one conversation and keeps what they establish."""

    def __init__(self, rng: random.Random, facts: Facts | None = None, is_brief: bool = False) -> None:
        self._rng = rng
        self._facts = dict(facts or {})
        self._is_brief = is_brief
        self.messages: list[dict[str, Any]] = []

    def draw(self, topic: str, is_held_out: bool = False) -> Example | None:
        """An example of the topic from the wanted side of the split; None if the conversation offers none."""
        for _ in range(400):
            example = TOPICS[topic][0](self._rng, self._facts)
            if example is None:
                return None
            if example.is_held_out == is_held_out:
                return example
        return None

    def say(self, topic: str, example: Example, *, is_noisy: bool) -> None:
        prompt = careless(self._rng, topic, example) if is_noisy else example.prompt
        reply = example.brief if self._is_brief and example.brief else self._rng.choice(example.replies)
        self.messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
        self._facts.pop("number", None)
        self._facts |= {**example.learned, "reply": reply}

    def turn(self, is_noisy: bool = True) -> None:
        """One training turn on a topic of chance; every third one refers back, where there is something to refer to."""
        while True:
            names = _CONTEXTUAL if self._rng.random() < 0.3 else tuple(TOPICS)
            weights = [1.0 if names is _CONTEXTUAL else TOPICS[name][1] for name in names]
            topic = self._rng.choices(names, weights)[0]
            example = self.draw(topic)
            if example is not None:
                self.say(topic, example, is_noisy=is_noisy)
                return


def careless(rng: random.Random, topic: str, example: Example) -> str:
    """The prompt as people type it: without capitals or full stops, with a filler word, with a typing error."""
    prompt = example.prompt
    if topic not in _CASE_MATTERS and rng.random() < 0.06:
        filler = rng.choice(("Please, ", "Hey, ", "Hi, ", "Ok, ", "So, ", "Well, ", "Hello! ", "Great. ", "Thanks. "))
        prompt = filler + (prompt[0].lower() + prompt[1:] if filler.endswith(", ") else prompt)
    if topic in _TYPED_CARELESSLY and rng.random() < 0.08:
        i = rng.randrange(len(prompt))
        prompt = prompt[:i] + rng.choice(("", prompt[i] * 2, rng.choice("aeiourstn"))) + prompt[i + 1 :]
    if rng.random() < 0.25:
        prompt = prompt.rstrip(".?!") or prompt
    if topic not in _CASE_MATTERS and rng.random() < 0.25:
        prompt = prompt.lower() if rng.random() < 0.92 else prompt.upper()
    if rng.random() < 0.03:
        prompt += rng.choice((" please", "??", "!!", " ", "...", " thanks", " now"))
    prompt = prompt.strip() or example.prompt
    is_leak = not example.key and is_held_out_key(normalised(prompt))
    return example.prompt if is_leak else prompt


def training_conversation(rng: random.Random, num_turns: int) -> Conversation:
    system, facts, is_brief = "", {}, False
    kind = rng.random()
    if kind < 0.05:
        system, is_brief = rng.choice(_BRIEF), True
    elif kind < 0.3:
        system = rng.choice(PERSONAS)
    elif kind < 0.34:
        system = " ".join(made_up_word(rng) for _ in range(rng.randint(1, 25)))
    if not is_brief and rng.random() < 0.03:
        name = rng.choice([name for name in NAMES if not is_held_out_key(f"name {name.lower()}")])
        system, facts = f"{system} The user's name is {name}.".strip(), {"name": name}
    speaker = Speaker(rng, facts, is_brief)
    for _ in range(num_turns):
        speaker.turn()
    head = [{"role": "system", "content": system}] if system else []
    return Conversation((*head, *speaker.messages))


def held_out_question(rng: random.Random, topic: str) -> tuple[Conversation, Example] | None:
    """A question of the held-out side, with the turns before it where the topic needs some; None if none was found."""
    for _ in range(200):
        speaker = Speaker(rng)
        for earlier in _what_leads_to(rng, topic):
            example = speaker.draw(earlier, is_held_out=earlier == "hearing about the user")
            if example is not None:
                speaker.say(earlier, example, is_noisy=False)
        question = speaker.draw(topic, is_held_out=True)
        if question is not None:
            return Conversation((*speaker.messages, {"role": "user", "content": question.prompt})), question
    return None


def _what_leads_to(rng: random.Random, topic: str) -> list[str]:
    fillers = rng.sample(("sums", "days", "spelling", "simple facts"), rng.randint(0, 2))
    return {
        "going on from a result": ["sums"],
        "remembering the user": ["hearing about the user", *fillers],
        "questions about the story": ["stories"],
        "repeating the last reply": ["days"],
    }.get(topic, [])


def main() -> None:
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for num_turns in (1, 3, 8, 12):
        for message in training_conversation(rng, num_turns).messages:
            print(f"{message['role']:>9}: {message['content']}")
        print()


if __name__ == "__main__":
    main()
