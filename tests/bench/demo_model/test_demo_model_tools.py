"""Conversations with tools: calls copy what the user typed, replies what the tool returned, and the split holds."""

import json
import random
import re
from typing import Any

import pytest

from bench.demo_model.example import is_held_out_key
from bench.demo_model.tools import TOPICS, held_out_question, tool_conversation


def conversations(seed: int, count: int) -> list[Any]:
    rng = random.Random(seed)
    return [tool_conversation(rng, 3) for _ in range(count)]


def test_the_same_seed_gives_the_same_conversations() -> None:
    assert tool_conversation(random.Random(7), 4) == tool_conversation(random.Random(7), 4)


def test_calls_name_an_offered_tool_and_copy_their_argument_from_the_question() -> None:
    num_calls = 0
    for conversation in conversations(1, 400):
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        question = ""
        for message in conversation.messages:
            question = message["content"] if message["role"] == "user" else question
            for call in message.get("tool_calls", ()):
                num_calls += 1
                schema, arguments = offered[call["function"]["name"]], call["function"]["arguments"]
                assert set(schema["required"]) == set(arguments)
                (value,) = arguments.values()
                assert all(part in question for part in (value.split()[::2] if value[0].isdigit() else [value]))
    assert num_calls > 500


def test_each_call_has_a_result_and_the_reply_says_it() -> None:
    for conversation in conversations(2, 200):
        text = " ".join(
            message["role"][0] + str(len(message.get("tool_calls", ()))) for message in conversation.messages
        )
        assert not re.search(r"a1 (?!t0 a0)|a2 (?!t0 t0 a0)|[us]0 t0", text)
        for result, reply in zip(conversation.messages, conversation.messages[1:], strict=False):
            if result["role"] == "tool" and reply["role"] == "assistant" and not result["content"].startswith("{"):
                assert result["content"].rstrip(".").partition(" in ")[0] in reply["content"]


def test_results_of_calculations_are_right() -> None:
    said = [m["content"] for c in conversations(3, 300) for m in c.messages if m["role"] == "assistant"]
    solved = [found for found in (re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\S+)\.", text) for text in said) if found]
    assert len(solved) > 100
    for found in solved:
        a, sign, b, result = found.groups()
        exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / max(int(b), 1)}[sign]
        assert float(result) == pytest.approx(exact, abs=0.006)  # quotients are rounded


def test_nothing_is_called_where_no_tool_is_offered() -> None:
    bare = [conversation for conversation in conversations(4, 400) if not conversation.tools]
    assert bare
    assert {m["role"] for conversation in bare for m in conversation.messages} <= {"system", "user", "assistant"}
    assert not any(m.get("tool_calls") for conversation in bare for m in conversation.messages)


def test_what_is_held_out_is_never_called_in_training() -> None:
    for conversation in conversations(5, 1000):
        for message in conversation.messages:
            for call in message.get("tool_calls", ()):
                (value,) = call["function"]["arguments"].values()
                key = value.replace(" ", "") if value[0].isdigit() else f"weather {value.lower()}"
                assert not is_held_out_key(key)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_held_out_questions(topic: str) -> None:
    rng = random.Random(6)
    for _ in range(20):
        conversation, example = held_out_question(rng, topic)
        assert example.is_held_out
        assert conversation.messages[-1]["role"] in ("user", "tool")
        if topic.startswith("calling"):
            calls = re.findall(r"<tool_call>\n(.*)\n</tool_call>", example.replies[0])
            names = {tool["function"]["name"] for tool in conversation.tools}
            assert {json.loads(call)["name"] for call in calls} <= names
            assert calls
