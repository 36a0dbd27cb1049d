"""The demo model that ships with the worker: its files, its template, and that it answers and stops."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bench.demo_model import model_files
from bench.demo_model.corpus import training_conversation
from bench.demo_model.evaluate import Chat, accuracy
from bench.demo_model.tools import tool_conversation
from gateway.model.chat_template import ChatTemplate
from gateway.protocol.chat import decode_chat
from gateway.tools.tool_format import HERMES, format_of

DIRECTORY = Path(__file__).parents[3] / "worker" / "demo_model"
MAX_BYTES_IN_GIT = 6_000_000


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(DIRECTORY)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))


def ask(chat: Chat, *prompts: str, system: str = "") -> str | None:
    messages = [{"role": "system", "content": system}] if system else []
    for prompt in prompts[:-1]:
        messages.append({"role": "user", "content": prompt})
        messages.append({"role": "assistant", "content": chat.replies([messages])[0] or ""})
    return chat.replies([[*messages, {"role": "user", "content": prompts[-1]}]])[0]


def test_files_stay_small_enough_for_git() -> None:
    assert sum(file.stat().st_size for file in DIRECTORY.iterdir()) < MAX_BYTES_IN_GIT


def test_generation_config_ends_turns_with_the_token_that_the_template_puts_after_each_message(chat: Chat) -> None:
    generation = json.loads((DIRECTORY / "generation_config.json").read_text())
    rendered = chat.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.tokenizer(rendered)["input_ids"][-1] == generation["eos_token_id"]
    assert chat.model.config.eos_token_id == generation["eos_token_id"]


@pytest.mark.parametrize("seed", range(20))
def test_template_renders_what_the_model_was_trained_on(chat: Chat, seed: int) -> None:
    messages = list(training_conversation(random.Random(seed), 3).messages)
    assert chat.tokenizer.apply_chat_template(messages, tokenize=False) == model_files.render(messages)


@pytest.mark.parametrize("seed", range(20))
def test_template_renders_tools_as_the_model_was_trained_on(chat: Chat, seed: int) -> None:
    conversation = tool_conversation(random.Random(seed), 3)
    messages, tools = list(conversation.messages), list(conversation.tools)
    rendered = chat.tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False)
    assert rendered == model_files.render(messages, tools)


def test_template_lists_each_tool_in_a_line() -> None:
    properties: dict[str, Any] = {"q": {"type": ["string", "null"]}, "n": {"type": "integer"}, "u": {"enum": [1, "b"]}}
    functions = [
        {"name": "bare"},
        {"name": "empty", "description": "", "parameters": {"type": "object"}},
        {
            "name": "search",
            "description": " Finds it.\nWith details.",
            "parameters": {"type": "object", "properties": properties, "required": ["n"]},
        },
        {"name": "odd", "parameters": {"properties": {"any": True, "items": {"$ref": "#/$defs/x"}}}},
    ]
    config = json.loads((DIRECTORY / "tokenizer_config.json").read_text())
    request = decode_chat(
        json.dumps(
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": [{"type": "function", "function": function} for function in functions],
            }
        ).encode()
    )
    template = ChatTemplate(config["chat_template"], {"bos_token": "", "eos_token": "<|end|>"})
    assert template.render(request) == (
        "<|system|>Tools:\nbare()\nempty()\nsearch(q?: any, n: integer, u?: 1|b) Finds it.\n"
        "odd(any?: any, items?: any)<|end|><|user|>Hi<|end|><|assistant|>"
    )
    assert format_of(config["chat_template"]) is HERMES


def test_template_takes_content_in_parts_and_opens_the_assistants_turn(chat: Chat) -> None:
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "morning"}]
    messages = [{"role": "developer", "content": "Be nice."}, {"role": "user", "content": parts}]
    rendered = chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|begin|><|system|>Be nice.<|end|><|user|>Good morning<|end|><|assistant|>"


def test_template_rejects_a_role_the_model_does_not_know(chat: Chat) -> None:
    with pytest.raises(Exception, match="roles system, user and assistant, not robot"):
        chat.tokenizer.apply_chat_template([{"role": "robot", "content": "beep"}], tokenize=False)


@given(text=st.text())
def test_tokenizer_round_trips_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2048").tokens == ["2", "0", "4", "8"]


@pytest.mark.parametrize(
    ("prompts", "reply"),
    [
        (["What is 14 + 25?"], "14 + 25 = 39."),
        (["What is 7 times 8?"], "7 * 8 = 56."),
        (["What day comes after Monday?"], "Tuesday comes after Monday."),
        (["How many cents are in 4 dollars?"], "4 dollars are 400 cents."),
        (["Spell apple."], "A-P-P-L-E."),
        (["Sort these numbers: 9, 3, 5"], "3, 5, 9."),
        (["My name is Ada.", "What is my name?"], "Your name is Ada."),
        (["What is 5 + 4?", "Add 3 to that."], "9 + 3 = 12."),
    ],
)
def test_a_simple_question_gets_the_right_answer(chat: Chat, prompts: list[str], reply: str) -> None:
    assert ask(chat, *prompts) == reply


@pytest.mark.parametrize("topic", ["sums", "comparing numbers", "unit conversion", "days", "spelling", "poems"])
def test_most_held_out_questions_are_answered_rightly(chat: Chat, topic: str) -> None:
    right, asked = accuracy(chat, topic, 12, is_verbose=True)
    assert right > 0.5 * asked


@pytest.mark.parametrize(
    "prompt", ["Hello!", "Who are you?", "What is the capital of Peru?", "Tell me a story.", "Thank you!"]
)
def test_the_model_ends_its_turn(chat: Chat, prompt: str) -> None:
    assert ask(chat, prompt, system="You are a helpful assistant.")


def test_the_model_says_what_it_is_and_admits_what_it_does_not_know(chat: Chat) -> None:
    assert "demo model of hocket" in (ask(chat, "Who are you?") or "")
    assert "tiny demo model" in (ask(chat, "What is the capital of Peru?") or "")


def test_a_chat_of_several_hundred_tokens_stays_sensible(chat: Chat) -> None:
    earlier = ["My name is Ada.", *(f"What is {n} + {n + 1}?" for n in range(1, 25)), "Tell me a story."]
    messages: list[dict[str, str]] = []
    for prompt in earlier:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": "All right."}]
    messages.append({"role": "user", "content": "What day comes after Friday?"})
    assert len(chat.tokenizer(model_files.render(messages))["input_ids"]) > 400
    assert chat.replies([messages]) == ["Saturday comes after Friday."]
