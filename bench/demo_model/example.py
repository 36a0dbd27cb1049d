"""One question and what counts as an answer to it; the vocabulary shared by all topics of the demo corpus."""

import random
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HELD_OUT_ONE_IN = 9

Facts = Mapping[str, str]
"""What the conversation has established so far: `name`, `number` (last result), `hero` (of the last story) …"""


@dataclass(frozen=True, slots=True)
class Example:
    """One user turn with every reply that is right.

    `key` is what the held-out split is made of: operands, a word, a name, a paraphrase; the prompt itself by default.
    A reply is right if it is one of `replies`, or, where there are `mentions`, if it contains all of these.
    `brief` replaces the reply in conversations whose system prompt asks for nothing but the result.
    """

    prompt: str
    replies: tuple[str, ...]
    key: str = ""
    mentions: tuple[str, ...] = ()
    brief: str = ""
    learned: Facts = field(default_factory=dict)

    @property
    def is_held_out(self) -> bool:
        return is_held_out_key(self.key or normalised(self.prompt))

    def is_answered_by(self, reply: str) -> bool:
        if self.mentions:
            return all(word.lower() in reply.lower() for word in self.mentions)
        return reply.strip() in self.replies


Topic = Callable[[random.Random, Facts], Example | None]
"""Draws an example, or None where the conversation so far gives the topic nothing to ask about."""


def is_held_out_key(key: str) -> bool:
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


def normalised(prompt: str) -> str:
    """The prompt without case, punctuation and spacing: two prompts equal here are the same question."""
    return " ".join(re.findall(r"[\w+*/=<>-]+", prompt.lower()))
