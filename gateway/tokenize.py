"""Text <-> token ids, as the checkpoint's tokenizer does it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gateway.checkpoint import Checkpoint, CheckpointError
from gateway.detokenize import Detokenizer, PieceDetokenizer, WindowDetokenizer
from gateway.vocabulary import Pieces, decoder_style

MAX_INLINE_CHARACTERS = 2048  # shorter text is encoded in less time than a thread hop is worth
NUM_THREADS = 2
_CONTEXT_TOKENS = 6


class Tokenizer:
    """Encoding releases the interpreter, so long texts go to a small pool and the event loop stays free."""

    def __init__(self, backend: Backend, before: Sequence[int] = (), after: Sequence[int] = ()) -> None:
        """`before` and `after`: the special tokens around every text (often a bos token, or none)."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._before = list(before)
        self._after = list(after)
        self._style = decoder_style(backend)
        added = backend.get_added_tokens_decoder()
        self._walls = frozenset(i for i, token in added.items() if token.special and not token.single_word)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        if self._style is not None:
            self._all_pieces = Pieces(backend, self._style, frozenset())
            self._text_pieces = Pieces(backend, self._style, self.special_ids)
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Tokenizer:
        """Raises CheckpointError."""
        try:
            backend = _read_backend(checkpoint.directory, checkpoint.tokenizer_config)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"The tokenizer in {checkpoint.directory} cannot be read: {error}") from None
        _mark_special_tokens(backend, checkpoint.special_tokens.values())
        return cls(backend, *_surrounding_tokens(backend, checkpoint))

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size()

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token_string(self, token_id: int) -> str:
        """As the vocabulary spells it; empty if there is no such id."""
        return self._backend.id_to_token(token_id) or ""

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Special tokens written out in the text are recognised either way."""
        return (await self.encode_all([text], add_special_tokens))[0]

    async def encode_prefix(self, text: str, add_special_tokens: bool) -> list[int]:
        """Those of its first tokens that the encoding of `text` with anything behind it begins with, too.

        More text can change how the last word falls into tokens, and how far the white space behind it goes, but
        nothing before. An added token is a wall: nothing merges across it.
        """
        if len(text) <= MAX_INLINE_CHARACTERS:
            return self._encode_prefix(text, add_special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._encode_prefix, text, add_special_tokens)

    async def encode_all(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        if sum(map(len, texts)) <= MAX_INLINE_CHARACTERS:
            return self._encode(texts, add_special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._encode, texts, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        before, after = (self._before, self._after) if add_special_tokens else ([], [])
        return [[*before, *encoding.ids, *after] for encoding in encodings]

    def _encode_prefix(self, text: str, add_special_tokens: bool) -> list[int]:
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]  # unlike encode(), lets others run
        ids = encoding.ids
        words = text.rstrip()
        last_word = len(words) - len(words.rsplit(None, 1)[-1]) if words else 0
        num_kept = len(ids)
        while num_kept and encoding.offsets[num_kept - 1][1] > last_word and ids[num_kept - 1] not in self._walls:
            num_kept -= 1
        return [*(self._before if add_special_tokens else []), *ids[:num_kept]]


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
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    before, after = full[:start], full[start + len(plain) :]
    if not (checkpoint.directory / "tokenizer.json").is_file():
        for name, side in (("bos", before), ("eos", after)):
            token_id = backend.token_to_id(checkpoint.special_tokens.get(f"{name}_token", ""))
            if checkpoint.tokenizer_config.get(f"add_{name}_token") and token_id is not None:
                side.append(token_id)
    return before, after
