"""A draft's tokens begin every prompt that the draft can become: property, over tokenizers and templates."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from fakes.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer
from fakes.fake_engine import INFO
from gateway.advisories.draft_prompt import draft_text, draft_token_ids
from gateway.model.chat_template import ChatTemplate
from gateway.model.tokenize import Tokenizer
from gateway.protocol.advisories import AdvisoryRequest
from gateway.protocol.chat import ChatRequest, Message

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
CORPUS = [
    "Internationalization is what internationals internationalize, isn't it?\n\n  Yes!!\n",
    "def main():\n    return 12345 + 678\n\n\nif x == 'it''s':\n\tprint(\"hello  world\")\r\n",
    "Größe, naïve, 東京は日本の首都です。 مرحبا بالعالم, здравствуй мир 🙂🙂\n",
] * 5

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Trims, and shows the reasoning of the last answer only, as Qwen3's template does.
FORGETFUL = (
    "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content | trim }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "forgetful": FORGETFUL, "plain": CHAT_TEMPLATE}


def trained(pre_tokenizer: Any, decoder: Any, **model: Any) -> Backend:
    backend = Backend(models.BPE(**model))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoder
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def llama3() -> Backend:
    split = pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend = trained(pre_tokenizers.Sequence([split, levels]), decoders.ByteLevel())
    backend.normalizer = normalizers.NFC()
    return backend


BACKENDS = {
    "bytes": byte_tokenizer,
    "gpt2": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
    "llama3": llama3,
    "metaspace": lambda: trained(pre_tokenizers.Metaspace(), decoders.Metaspace(), unk_token="<unk>"),
}


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(BACKENDS[name]())


texts = st.one_of(
    st.text(st.sampled_from(" \n\tabcé'!.1東🙂"), max_size=30),
    st.lists(st.sampled_from([*"".join(CORPUS).split(" "), " ", "\n", "  "]), max_size=8).map(" ".join),
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(text=texts, more=texts)
def test_the_tokens_of_a_beginning_begin_the_tokens_of_the_whole(backend: str, text: str, more: str) -> None:
    ours = tokenizer(backend)
    prefix = asyncio.run(ours.encode_prefix(text, add_special_tokens=False))
    whole = asyncio.run(ours.encode(text + more, add_special_tokens=False))
    assert prefix == whole[: len(prefix)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("template", TEMPLATES)
@given(first=texts.filter(str.strip), draft=texts, more=texts)
def test_a_drafts_tokens_begin_the_later_prompt(template: str, backend: str, first: str, draft: str, more: str) -> None:
    ours, chat_template = tokenizer(backend), ChatTemplate(TEMPLATES[template], {})
    before = [Message("user", first), Message("assistant", f"<think>Hm.</think> {first}!")]
    begun = asyncio.run(draft_token_ids(chat_template, ours, AdvisoryRequest(messages=before, draft=draft), INFO))
    finished = chat_template.render(ChatRequest(messages=[*before, Message("user", draft + more)]))
    whole = asyncio.run(ours.encode(finished, add_special_tokens=False))
    if draft.strip() or template != "forgetful":  # a template that trims eats white space with nothing before it
        assert begun == whole[: len(begun)]


def test_a_draft_leaves_the_users_turn_open() -> None:
    template = ChatTemplate(CHATML, {})
    before = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello!")]
    assert draft_text(template, AdvisoryRequest(messages=before, draft="How are")).endswith(
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nHow are"
    )


def test_messages_that_end_with_an_answer_wait_for_the_user() -> None:
    text = draft_text(
        ChatTemplate(FORGETFUL, {}),
        AdvisoryRequest(messages=[Message("user", "Hi"), Message("assistant", "<think>Hm.</think> Hello!")]),
    )
    assert text == "[user] Hi<|im_end|>\n[assistant] Hello!<|im_end|>\n[user] "


def test_messages_that_end_with_the_user_stop_before_the_generation_prompt() -> None:
    text = draft_text(ChatTemplate(CHATML, {}), AdvisoryRequest(messages=[Message("user", "Hi")]))
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


def test_only_what_cannot_change_is_kept() -> None:
    ours = tokenizer("llama3")
    kept = asyncio.run(ours.encode_prefix("isn't it? Yes internation", add_special_tokens=False))
    assert ours.decode(kept).startswith("isn't it? Yes")
    assert ours.decode(asyncio.run(ours.encode_prefix("isn't it? Yes'", add_special_tokens=False))).startswith(
        "isn't it"
    )
    walled = asyncio.run(ours.encode_prefix("internation<|im_end|>", add_special_tokens=False))
    assert ours.decode(walled, skip_special_tokens=False) == "internation<|im_end|>"
