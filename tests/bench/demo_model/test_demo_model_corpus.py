"""The generator of the demo model's training text: seeded, right, and split so that evaluation is never trained on."""

import random
import re

import pytest

from bench.demo_model.arithmetic import result_of
from bench.demo_model.corpus import TOPICS, Speaker, careless, held_out_question, training_conversation
from bench.demo_model.example import is_held_out_key, normalised


def prompts_of(seed: int, num_conversations: int) -> set[str]:
    rng = random.Random(seed)
    conversations = [training_conversation(rng, 4) for _ in range(num_conversations)]
    return {m["content"] for c in conversations for m in c.messages if m["role"] == "user"}


def test_the_same_seed_gives_the_same_conversations() -> None:
    assert training_conversation(random.Random(7), 9) == training_conversation(random.Random(7), 9)
    assert training_conversation(random.Random(7), 9) != training_conversation(random.Random(8), 9)


def test_messages_alternate_after_an_optional_system_message() -> None:
    rng = random.Random(9)
    for _ in range(50):
        roles = [m["role"] for m in training_conversation(rng, 5).messages]
        assert roles[roles[0] == "system" :] == ["user", "assistant"] * 5


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_held_out_questions(topic: str) -> None:
    drawn = held_out_question(random.Random(1), topic)
    assert drawn is not None
    conversation, example = drawn
    assert example.is_held_out
    assert conversation.messages[-1] == {"role": "user", "content": example.prompt}


def test_held_out_questions_that_are_their_own_key_never_occur_in_training() -> None:
    rng = random.Random(3)
    trained = {normalised(prompt) for prompt in prompts_of(3, 4000)}
    # "what is my name?" is another question once the name was told: its split is by what was told, not by its words
    topics = [topic for topic in TOPICS if topic != "not told yet"]
    asked = [held_out_question(rng, topic) for topic in topics for _ in range(25)]
    own_key = {normalised(pair[1].prompt) for pair in asked if pair and not pair[1].key and len(pair[0].messages) == 1}
    assert len(own_key) > 100
    assert not own_key & trained


def test_held_out_operands_are_never_added_in_training() -> None:
    sums = re.compile(r"^(\d+) ([+-]) (\d+) = ")
    rng = random.Random(4)
    messages = [message for _ in range(4000) for message in training_conversation(rng, 4).messages]
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    trained = {"".join(found.groups()) for found in map(sums.match, replies) if found}
    assert len(trained) > 500
    assert not [key for key in trained if is_held_out_key(key)]


def test_careless_typing_never_turns_a_training_prompt_into_a_held_out_one() -> None:
    rng = random.Random(5)
    for _ in range(3000):
        example = Speaker(rng).draw("small talk")
        assert example is not None
        typed = careless(rng, "small talk", example)
        assert normalised(typed) == normalised(example.prompt) or not is_held_out_key(normalised(typed))


@pytest.mark.parametrize("topic", ["sums", "double and half", "word problems"])
def test_sums_in_replies_are_right(topic: str) -> None:
    speaker = Speaker(random.Random(8))
    for _ in range(200):
        example = speaker.draw(topic)
        assert example is not None
        found = re.match(r"(\d+) ([-+*/]) (\d+) = (-?\d+)", example.replies[0])
        assert found is not None
        assert result_of(int(found[1]), found[2], int(found[3])) == int(found[4]) == int(example.learned["number"])


def test_what_the_user_told_is_recalled_and_what_was_not_told_is_admitted() -> None:
    speaker = Speaker(random.Random(6), {"name": "Ada", "city": "Cairo"})
    replies = {example.replies[0] for _ in range(50) if (example := speaker.draw("remembering the user"))}
    assert replies == {"Your name is Ada.", "You told me about Cairo."}
    unknown = {example.replies[0] for _ in range(50) if (example := speaker.draw("not told yet"))}
    assert not any("name" in reply for reply in unknown)
