"""Users who converse for ever: they read the answer, type the next message, and begin anew when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

READING_TOKENS_PER_SECOND = 5.3  # 238 words a minute, 4 tokens for 3 words
MEAN_TYPING_SECONDS = 11.3  # Symphony, section 1


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens that the user adds to the conversation, and tokens of the answer."""

    num_new: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Between the end of an answer and the next message, in seconds."""

    before_typing: float
    typing: float


def pause(previous: Round, current: Round, mean_new: float) -> Pause:
    """Reading takes its time, and typing in proportion to what is typed, 11.3 s on average over all rounds."""
    reading = previous.num_output / READING_TOKENS_PER_SECOND
    return Pause(reading, MEAN_TYPING_SECONDS * current.num_new / mean_new)


class ChatUser:
    """Which conversation comes when depends on the user's number and the seed alone, not on how it is served."""

    def __init__(self, number: int, conversations: Sequence[Sequence[Round]], seed: int) -> None:
        self._conversations = conversations
        self._random = np.random.default_rng([seed, number])
        self._rounds: Sequence[Round] = ()
        self._next = 0
        self.num_conversations = 0

    def next_round(self) -> tuple[Round | None, Round]:
        """The round before, None in a new conversation, and the round that comes."""
        if self._next == len(self._rounds):
            self._rounds = self._conversations[int(self._random.integers(len(self._conversations)))]
            self._next = 0
            self.num_conversations += 1
        previous = self._rounds[self._next - 1] if self._next else None
        self._next += 1
        return previous, self._rounds[self._next - 1]

    def first_delay(self, max_seconds: float) -> float:
        """Users do not all begin at once."""
        return float(self._random.uniform(0.0, max_seconds))

    def is_missed(self, ratio: float) -> bool:
        """Drawn once per follow-up message: whether its advisory is lost."""
        return bool(self._random.random() < ratio)
