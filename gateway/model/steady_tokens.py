"""The first tokens of a text that is still being written which no continuation changes.

Words before the last ones are settled (growing_text.py says which those are). Within a word that may grow, tokens are
settled as far as all its possible endings agree:

- A token of the grown word that reaches across the present end begins somewhere in the word, at a cut. What stands
  before a cut is encoded as if the word ended there: byte pair encoding has merged nothing across it, and merges on
  either side of it come in the same order without the other side; a unigram model's best path to a cut does not look
  behind it.
- So the grown word's tokens begin with those of the word up to some cut, or up to its end, and what the encodings of
  all of these begin with is settled. A cut counts only if what follows it begins a token of the vocabulary.
- Byte pair encoding is settled pair by pair: tokens that stand side by side wherever each two neighbours do are the
  encoding of their text. So a long word is looked at through a window at its end, if the window's first token still
  follows the token before the window, whatever the cut.

Every step is linear: the windows are bounded, and their number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import takewhile

from tokenizers import Encoding, models
from tokenizers import Tokenizer as Backend

from gateway.model.growing_text import Ends, Words
from gateway.model.vocabulary import Pieces, is_byte_token

_MAX_CUTS = 48  # a word with more of them (a long row of one character) is dropped whole
_MAX_WHOLE_CHARACTERS = 4096  # of a word that has to be encoded whole for every cut
_NUM_WINDOWS = 3  # each twice as long as the one before
_MAX_LAST_WORDS = 4
_SHRINKING = 4  # that normalizing makes a text shorter, at most


class SteadyTokens:
    """Of one tokenizer."""

    def __init__(self, backend: Backend, pieces: Pieces | None) -> None:
        """pieces: of all tokens; None where a text is more than the sum of its tokens."""
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._ends, self._words = Ends(backend), Words.of(backend)
        self._added = frozenset(added)
        inside = "\0".join(token.content[:-1] for token in added.values())  # what may still become one of them
        self._walls = frozenset(
            i for i, token in added.items() if token.special and not token.single_word and token.content not in inside
        )
        self._pieces = pieces
        self._is_known = self._ends.is_known and self._words.is_known and pieces is not None
        self._growing = GrowingWord(backend) if _grows_evenly(backend) else None
        self._unknown = getattr(backend.model, "unk_token", None)

    @property
    def may_cut_texts(self) -> bool:
        """Whether a text's tokens are those of its pieces (text_pieces.py)."""
        return (
            self._is_known and self._words.has_patterns and self._growing is not None and self._ends.may_follow_cuts()
        )

    @property
    def longest_token(self) -> int | None:
        """Characters; None where a token may stand for any number of them."""
        if self._growing is None or not self._ends.may_follow_cuts() or getattr(self._backend.model, "fuse_unk", True):
            return None
        return max(self._growing.longest, self._ends.longest) * _SHRINKING

    def ids(self, text: str) -> list[int]:
        """Without the tokens around every text."""
        if not self._is_known:
            text = _without_last_word(text)
        text = self._ends.before_added_token(text)
        encoding = self._encode(text if self._ends.seems_walled(text) else self._ends.before_marks(text))
        if self._ends.seems_walled(text) and not self._is_walled(encoding):
            encoding = self._encode(self._ends.before_marks(text))
        return encoding.ids[: self._num_steady(encoding)]

    def _encode(self, text: str) -> Encoding:
        return self._backend.encode_batch([text], add_special_tokens=False)[0]  # unlike encode(), lets others run

    def _is_walled(self, encoding: Encoding) -> bool:
        return bool(encoding.ids) and encoding.ids[-1] in self._walls

    def _num_steady(self, encoding: Encoding) -> int:
        ids = encoding.ids
        end = len(ids)
        while end and ids[end - 1] in self._added and ids[end - 1] not in self._walls:
            end -= 1
        if not end or ids[end - 1] in self._walls:
            return end
        if not self._is_known:
            return next(self._last_words(encoding, ids, end), (0, 0))[0]
        return self._num_before_last_words(encoding, ids, end)

    def _num_before_last_words(self, encoding: Encoding, ids: list[int], end: int) -> int:
        words = list(self._some_words(encoding, ids, end))
        if self._words.has_patterns and self._text(ids, *words[0]).isspace():
            num_spaces = sum(1 for _ in takewhile(lambda word: self._text(ids, *word).isspace(), words))
            return words[num_spaces - 1][0]
        before_last = self._text(ids, *words[1]) if len(words) > 1 else ""
        num_unsteady = (
            self._words.num_unsteady(self._text(ids, *words[0]), before_last) if self._words.has_patterns else 0
        )
        if num_unsteady:
            return words[min(num_unsteady, len(words)) - 1][0]
        start, end = words[0]
        return start + (self._growing.num_steady(self._spelled(ids, start, end)) if self._growing else 0)

    def _some_words(self, encoding: Encoding, ids: list[int], end: int) -> Iterator[tuple[int, int]]:
        """The last words, back to one that is more than white space and a few more."""
        num_more = _MAX_LAST_WORDS
        for word in self._last_words(encoding, ids, end):
            yield word
            num_more -= not (self._words.has_patterns and self._text(ids, *word).isspace())
            if num_more == 0:
                return

    def _last_words(self, encoding: Encoding, ids: list[int], end: int) -> Iterator[tuple[int, int]]:
        """(first token, end) of each word, backwards, up to an added token."""
        while end and ids[end - 1] not in self._added:
            word, start = encoding.token_to_word(end - 1), end - 1
            while start and ids[start - 1] not in self._added and encoding.token_to_word(start - 1) == word:
                start -= 1
            yield start, end
            end = start

    def _text(self, ids: list[int], start: int, end: int) -> str:
        assert self._pieces is not None
        return b"".join([self._pieces[i] for i in ids[start:end]]).decode(errors="replace")

    def _spelled(self, ids: list[int], start: int, end: int) -> list[str]:
        """As in the vocabulary; empty for a byte of a character that the vocabulary lacks, or an unknown one."""
        tokens = [self._backend.id_to_token(i) or "" for i in ids[start:end]]
        return ["" if is_byte_token(token) or token == self._unknown else token for token in tokens]


class GrowingWord:
    """The last word of a text, to which more may be added, in the vocabulary's spelling."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._looks_up_words = isinstance(backend.model, models.BPE) and backend.model.ignore_merges
        self._splits_by_pairs = isinstance(backend.model, models.BPE)
        self._sorted = sorted(backend.get_vocab(with_added_tokens=False))
        self.longest = max(map(len, self._sorted), default=1)

    def num_steady(self, tokens: Sequence[str]) -> int:
        """Of the word's tokens, those that all its continuations begin with."""
        wall = next((i for i in range(len(tokens), 0, -1) if not tokens[i - 1]), 0)  # nothing merges across a byte
        if wall and not self._splits_by_pairs:
            return 0
        return wall + self._num_after_wall(tokens[wall:]) if wall < len(tokens) else wall

    def _num_after_wall(self, tokens: Sequence[str]) -> int:
        size = 2 * self.longest
        for _ in range(_NUM_WINDOWS):
            start = _window(tokens, size)
            if not self._splits_by_pairs or start == 0:
                return self._of_whole("".join(tokens))
            if (num_steady := self._of_window("".join(tokens[start:]), tokens[start - 1])) is not None:
                return start + num_steady
            size *= 2
        return 0

    def _of_whole(self, word: str) -> int:
        cuts = self._cuts(word)
        if len(word) > max(_MAX_WHOLE_CHARACTERS, 16 * self.longest) or len(cuts) > _MAX_CUTS:
            return 0
        if self._looks_up_words and self._begins_token(word):
            return 0
        return _num_common([self._encode(word[:cut]) for cut in cuts])

    def _of_window(self, window: str, before: str) -> int | None:
        """None: a cut moves the window's beginning, too."""
        cuts = self._cuts(window)
        if len(cuts) > _MAX_CUTS:
            return None
        encoded = [self._encode(window[:cut]) for cut in cuts]
        firsts = {tokens[0] for tokens in encoded}
        if any(self._encode(before + first) != [before, first] for first in firsts):
            return None
        return _num_common(encoded)

    def _encode(self, text: str) -> list[str]:
        return [token.value for token in self._backend.model.tokenize(text)] if text else []

    def _cuts(self, word: str) -> list[int]:
        """Where the last token that ends within the word may end."""
        first = max(0, len(word) - self.longest + 1)
        return [cut for cut in range(first, len(word)) if self._begins_token(word[cut:])] + [len(word)]

    def _begins_token(self, text: str) -> bool:
        place = bisect_left(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)


def _grows_evenly(backend: Backend) -> bool:
    """Whether a word's tokens do not depend on where it begins and ends but by its characters."""
    model = backend.model
    if isinstance(model, models.BPE):
        return not (model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix)
    return isinstance(model, models.Unigram)


def _window(tokens: Sequence[str], size: int) -> int:
    """Index of the first of the last tokens that have `size` characters together; 0 if all have fewer."""
    start = len(tokens)
    while start and size > 0:
        start -= 1
        size -= len(tokens[start])
    return start


def _num_common(sequences: list[list[str]]) -> int:
    """Length of what all of them begin with."""
    shortest = min(map(len, sequences))
    return next((i for i in range(shortest) if len({sequence[i] for sequence in sequences}) > 1), shortest)


def _without_last_word(text: str) -> str:
    words = text.rstrip()
    return words[: len(words) - len(words.rsplit(None, 1)[-1])].rstrip() if words else ""
