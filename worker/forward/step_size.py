"""What is recorded: steps of so many tokens and sequences, to which smaller ones are padded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_TOKENS = 16  # of a size for steps with chunks
SEQUENCES = (8, 32, 128)  # of such sizes, and as many as there may be: how few there are decides how keys are split


@dataclass(frozen=True, slots=True)
class StepSize:
    num_tokens: int
    num_seqs: int  # as many as tokens: of decodes alone

    @property
    def is_of_decodes(self) -> bool:
        return self.num_seqs == self.num_tokens


def token_counts(largest: int) -> list[int]:
    """Ascending up to `largest`: powers of two, and from 8 on the middles between them."""
    powers = [1 << i for i in range(largest.bit_length())]
    counts = {*powers, *(3 * power // 2 for power in powers if power >= 8), largest}
    return sorted(count for count in counts if count <= largest)


def step_sizes(max_tokens: int, max_seqs: int) -> list[StepSize]:
    """Ascending. Of steps with chunks, which have fewer sequences than tokens, as of decodes."""
    decodes = [StepSize(n, n) for n in token_counts(min(max_tokens, max_seqs))]
    mixed = [
        StepSize(num_tokens, num_seqs)
        for num_tokens in token_counts(max_tokens)
        if num_tokens >= LEAST_TOKENS
        for num_seqs in sorted({min(n, max_seqs, num_tokens - 1) for n in (*SEQUENCES, max_seqs)})
    ]
    return sorted([*decodes, *mixed], key=_order)


def smallest(sizes: Iterable[StepSize], num_tokens: int, num_seqs: int) -> StepSize | None:
    """Of `sizes`, ascending, the first that a step of so many fits; None: it fits none."""
    is_of_decodes = num_seqs == num_tokens
    for size in sizes:
        if size.is_of_decodes is is_of_decodes and size.num_tokens >= num_tokens and size.num_seqs >= num_seqs:
            return size
    return None


def _order(size: StepSize) -> tuple[int, int]:
    return size.num_tokens, size.num_seqs
