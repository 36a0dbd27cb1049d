"""Text <-> token ids, as the checkpoint's tokenizer does it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gateway.model.checkpoint import Checkpoint, CheckpointError
from gateway.model.detokenize import Detokenizer, PieceDetokenizer, WindowDetokenizer
from gateway.model.large_texts import LargeTexts
from gateway.model.steady_tokens import SteadyTokens
from gateway.model.text_pieces import encoding_here, pieces
from gateway.model.vocabulary import Pieces, decoder_style
from gateway.model.work_pool import LARGE_SIZE, Work, WorkPool, in_one_step
from gateway.protocol.errors import InvalidRequestError

MAX_INLINE_CHARACTERS = 2048  # shorter text is encoded in less time than a thread hop is worth
_CONTEXT_TOKENS = 6
MAX_PROBES = 512  # words of the vocabulary that are tried for one that is not lost in encoding


@dataclass(frozen=True, slots=True)
class Asker:
    """For whom a text is encoded, and how many tokens it may have."""

    tenant: str = ""
    max_tokens: int | None = None
    param: str = "prompt"
    is_background: bool = False


_ANYBODY = Asker()


class Tokenizer:
    """Encoding releases the interpreter, so long texts go to a small pool and the event loop stays free.

    Large ones go on from there to a process that stands back behind all others.
    """

    def __init__(self, backend: Backend, before: Sequence[int] = (), after: Sequence[int] = ()) -> None:
        """`before` and `after`: the special tokens around every text (often a bos token, or none)."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._before = list(before)
        self._after = list(after)
        self._style = decoder_style(backend)
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        if self._style is not None:
            self._all_pieces = Pieces(backend, self._style, frozenset())
            self._text_pieces = Pieces(backend, self._style, self.special_ids)
        self._steady = SteadyTokens(backend, self._all_pieces if self._style is not None else None)
        self._large = LargeTexts(backend)
        self.pool = WorkPool()

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Tokenizer:
        """Raises CheckpointError."""
        try:
            backend = _read_backend(checkpoint.directory, checkpoint.tokenizer_config)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"The tokenizer in {checkpoint.directory} cannot be read: {error}") from None
        _mark_special_tokens(backend, checkpoint.special_tokens.values())
        backend.no_truncation()  # a file may say how a training run cut and filled its texts; prompts are neither,
        backend.no_padding()  # nor is the text that shows which tokens come around every text
        return cls(backend, *_surrounding_tokens(backend, checkpoint))

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after every text."""
        return self._before, self._after

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size()

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def marker_id(self, text: str) -> int | None:
        """Of an added token that is no text to a grammar: a special one, or one in angle brackets."""
        token_id = self.token_id(text)
        is_marker = token_id in self.special_ids or (token_id in self._added_ids and text[:1] + text[-1:] == "<>")
        return token_id if is_marker else None

    def token_string(self, token_id: int) -> str:
        """As the vocabulary spells it; empty if there is no such id."""
        return self._backend.id_to_token(token_id) or ""

    async def encode(self, text: str, add_special_tokens: bool, asker: Asker = _ANYBODY) -> list[int]:
        """Special tokens written out in the text are recognised either way. Raises as encode_all does."""
        return (await self.encode_all([text], add_special_tokens, asker))[0]

    async def encode_prefix(self, text: str, add_special_tokens: bool, asker: Asker = _ANYBODY) -> list[int]:
        """Those of its first tokens that the encoding of `text` with anything behind it begins with, too.

        steady_tokens.py says how that is known. Raises as encode_all does.
        """
        if len(text) <= MAX_INLINE_CHARACTERS:
            return self._encode_prefix(text, add_special_tokens)
        self.check_size(len(text), asker)
        for _ in pieces(text, may_cut=False):
            pass
        work = in_one_step(self._encode_prefix, text, add_special_tokens)
        return await self.pool.run(work, len(text), asker.tenant, is_background=asker.is_background)

    async def encode_all(self, texts: list[str], add_special_tokens: bool, asker: Asker = _ANYBODY) -> list[list[int]]:
        """Raises InvalidRequestError where a text has too many tokens for its asker, QueueFullError."""
        size = sum(map(len, texts))
        if size <= MAX_INLINE_CHARACTERS:
            return self._encode(texts, add_special_tokens)
        for text in texts:
            self.check_size(len(text), asker)
        work = self._encoding(texts, add_special_tokens, asker)
        return await self.pool.run(work, size, asker.tenant, is_background=asker.is_background)

    def word_tokens(self, words: Sequence[str]) -> list[list[int]]:
        """Each word as it begins a text and, where that is encoded otherwise, as it comes behind a space."""
        spellings = [spelling for word in words for spelling in (word.lstrip(" "), " " + word.lstrip(" "))]
        found = {tuple(ids) for ids in self._encode(spellings, False)}
        return [list(ids) for ids in sorted(found) if ids]

    def check_size(self, num_characters: int, asker: Asker) -> None:
        """Raises InvalidRequestError where so many characters make too many tokens, however they are encoded."""
        longest = self._steady.longest_token
        if asker.max_tokens is not None and longest is not None and num_characters > asker.max_tokens * longest:
            raise _too_many(asker)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def decode_long(self, token_ids: list[int]) -> str:
        """Special tokens are shown. Unlike decode(), lets other threads run."""
        return self._backend.decode_batch([token_ids], skip_special_tokens=False)[0]

    def piece(self, token_id: int) -> bytes:
        """The bytes of one token, special ones too; for log-probabilities."""
        if self._style is not None:
            return self._all_pieces[token_id]
        return self._backend.decode([token_id], skip_special_tokens=False).encode()

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """For what follows the prompt."""
        if self._style is None:
            return WindowDetokenizer(self._backend, prompt_token_ids[-_CONTEXT_TOKENS:], skip_special_tokens)
        pieces = self._text_pieces if skip_special_tokens else self._all_pieces
        starts_text = self._style.strips_first_space and all(not pieces[token_id] for token_id in prompt_token_ids)
        return PieceDetokenizer(pieces, starts_text)

    def close(self) -> None:
        self._large.close()
        self.pool.close()

    def _encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        before, after = (self._before, self._after) if add_special_tokens else ([], [])
        return [[*before, *encoding.ids, *after] for encoding in encodings]

    def _encoding(self, texts: list[str], add_special_tokens: bool, asker: Asker) -> Work[list[list[int]]]:
        before, after = (self._before, self._after) if add_special_tokens else ([], [])
        is_large = sum(map(len, texts)) > LARGE_SIZE
        found = []
        room = None if asker.max_tokens is None else asker.max_tokens - len(before)
        for text in texts:
            cut = pieces(text, self._steady.may_cut_texts)
            work = self._large.encoding(list(cut), room) if is_large else encoding_here(self._backend, cut, room)
            ids = yield from work
            if ids is None:
                raise _too_many(asker)
            found.append(before + ids + after)
        return found

    def _encode_prefix(self, text: str, add_special_tokens: bool) -> list[int]:
        return [*(self._before if add_special_tokens else []), *self._steady.ids(text)]


def _too_many(asker: Asker) -> InvalidRequestError:
    return InvalidRequestError(
        f"At most {asker.max_tokens} tokens are taken, but the text makes more: shorten it.",
        param=asker.param,
        code="context_length_exceeded",
    )


def _read_backend(directory: Path, config: dict[str, Any]) -> Backend:
    if (directory / "tokenizer.json").is_file():
        return Backend.from_file(str(directory / "tokenizer.json"))
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    if vocab.is_file() and merges.is_file():
        return _byte_level_bpe(vocab, merges, config)
    raise FileNotFoundError("there is neither a tokenizer.json nor a vocab.json with merges.txt")


def _byte_level_bpe(vocab: Path, merges: Path, config: dict[str, Any]) -> Backend:
    """GPT-2's files, as OPT checkpoints have them."""
    backend = Backend(models.BPE.from_file(str(vocab), str(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()
    added = config.get("added_tokens_decoder") or {}
    for _, token in sorted(added.items(), key=lambda item: int(item[0])):
        backend.add_tokens([AddedToken(**{key: value for key, value in token.items() if key != "id"})])
    return backend


def _mark_special_tokens(backend: Backend, tokens: Iterable[str]) -> None:
    """Some checkpoints name their special tokens in the configuration only. Tokens without an id are left alone."""
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [token for token in tokens if token not in known and backend.token_to_id(token) is not None]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])


def _surrounding_tokens(backend: Backend, checkpoint: Checkpoint) -> tuple[list[int], list[int]]:
    """What the post-processor puts around a text. Where there is no tokenizer.json, the configuration says it."""
    text = _ordinary_text(backend)
    plain = backend.encode(text, add_special_tokens=False).ids
    full = backend.encode(text, add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    before, after = full[:start], full[start + len(plain) :]
    if not (checkpoint.directory / "tokenizer.json").is_file():
        for name, side in (("bos", before), ("eos", after)):
            token_id = backend.token_to_id(checkpoint.special_tokens.get(f"{name}_token", ""))
            if checkpoint.tokenizer_config.get(f"add_{name}_token") and token_id is not None:
                side.append(token_id)
    return before, after


def _ordinary_text(backend: Backend) -> str:
    """A text of at least one token, none of them special: some vocabularies lack the Latin letters."""
    words = sorted(backend.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for text in ("a", *(word for word, _ in words[:MAX_PROBES] if word not in added)):
        with contextlib.suppress(
            Exception
        ):  # the library raises plain Exception, here for a word that it does not know
            if backend.encode(text, add_special_tokens=False).ids:
                return text
    return "a"
