"""Accuracy of the demo model on held-out questions, per topic, by greedy decoding in Hugging Face transformers, or
in a server that runs already: what its dtype, quantization and kernels make of the model.

    python -m bench.demo_model.evaluate [--model worker/demo_model] [--questions 100] [--card | --transcript]
    python -m bench.demo_model.evaluate --server http://127.0.0.1:8000

Prints the table of the model card, and with --card puts it there. A reply is right if it is, to the letter, one of the
replies that the corpus accepts (for stories, poems and refusals: if it has what was asked for), and if the model ended
its turn by itself.
"""

import argparse
import json
import random
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.demo_model import corpus, tools
from bench.demo_model.corpus import Conversation
from bench.demo_model.example import Example
from bench.demo_model.model_files import Message, written_calls

_MAX_NEW_TOKENS = 160
_TABLE_BEGINS, _TABLE_ENDS = "<!-- accuracy begins -->", "<!-- accuracy ends -->"
_TRANSCRIPT = (
    "Hello!", "My name is Ada.", "What is 17 + 25?", "And 8 more?", "Spell elephant",
    "Sort these words: pear, apple, mango",
    "How many minutes are in 3 hours?", "What is the capital of France?", "Tell me a short story about an owl.",
    "What was the owl called?", "what is my name?", "Who are you?", "Thank you!", "bye",
)  # fmt: skip


TOPICS = (*corpus.TOPICS, *tools.TOPICS)
Tools = Sequence[dict[str, Any]]


class Answering(Protocol):
    def replies(self, conversations: Sequence[Sequence[Message]], offered: Sequence[Tools] = ()) -> list[str | None]:
        """One reply each, calls as the model writes them; None where it did not end its turn.

        offered: the tools of each conversation; none by default.
        """


class ServedChat:
    """A server, asked greedily; several conversations at a time."""

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url.rstrip('/')}/v1/chat/completions"

    def replies(self, conversations: Sequence[Sequence[Message]], offered: Sequence[Tools] = ()) -> list[str | None]:
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(self._reply, conversations, offered or [()] * len(conversations)))

    def _reply(self, messages: Sequence[Message], tools: Tools) -> str | None:
        body: dict[str, Any] = {"model": "demo", "messages": messages, "max_tokens": _MAX_NEW_TOKENS, "temperature": 0}
        body |= {"tools": tools} if tools else {}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            choice = json.load(response)["choices"][0]
        calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        if calls:
            parsed = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]
            return written_calls({"function": call} for call in parsed)
        return choice["message"]["content"] if choice["finish_reason"] == "stop" else None


class Chat:
    """A model with its tokenizer, answering greedily."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.tokenizer.padding_side = "left"
        self.model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def replies(self, conversations: Sequence[Sequence[Message]], offered: Sequence[Tools] = ()) -> list[str | None]:
        texts = [
            self.tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=True
            )
            for messages, tools in zip(conversations, offered or [()] * len(conversations), strict=True)
        ]
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        with torch.inference_mode():
            tokens = self.model.generate(**inputs, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False)
        return [self._text(row) for row in tokens[:, inputs["input_ids"].shape[1] :].tolist()]

    def _text(self, tokens: list[int]) -> str | None:
        end = self.tokenizer.eos_token_id
        return self.tokenizer.decode(tokens[: tokens.index(end)]) if end in tokens else None


def questions(topic: str, count: int) -> list[tuple[Conversation, Example]]:
    """Up to `count` different held-out questions; small topics have fewer."""
    rng = random.Random(f"evaluate {topic}")
    draw = corpus.held_out_question if topic in corpus.TOPICS else tools.held_out_question
    drawn = (draw(rng, topic) for _ in range(count))
    return list({str(pair[0].messages): pair for pair in drawn if pair}.values())


def accuracy(chat: Answering, topic: str, count: int, is_verbose: bool) -> tuple[int, int]:
    """How many of how many questions were answered rightly."""
    asked, num_right = questions(topic, count), 0
    for start in range(0, len(asked), 50):
        batch = asked[start : start + 50]
        replies = chat.replies([list(c.messages) for c, _ in batch], [list(c.tools) for c, _ in batch])
        for (conversation, example), reply in zip(batch, replies, strict=True):
            is_right = reply is not None and example.is_answered_by(reply)
            num_right += is_right
            if is_verbose and not is_right:
                print(f"    {conversation.messages[-1]['content']!r} -> {reply!r}, wanted {example.replies[0]!r}")
    return num_right, len(asked)


def print_transcript(chat: Answering) -> None:
    messages: list[dict[str, str]] = []
    for prompt in _TRANSCRIPT:
        messages.append({"role": "user", "content": prompt})
        reply = chat.replies([messages])[0]
        messages.append({"role": "assistant", "content": reply or ""})
        print(f"> {prompt}\n{reply}")


def table(chat: Answering, count: int, is_verbose: bool) -> str:
    lines = ["| topic | right | questions | accuracy |", "|---|---|---|---|"]
    all_right = all_asked = 0
    for topic in TOPICS:
        right, asked = accuracy(chat, topic, count, is_verbose)
        all_right, all_asked = all_right + right, all_asked + asked
        lines.append(f"| {topic} | {right} | {asked} | {100 * right / asked:.0f} % |")
        print(lines[-1], flush=True)
    lines.append(f"| **all** | {all_right} | {all_asked} | {100 * all_right / all_asked:.0f} % |")
    print(lines[-1])
    return "\n".join(lines)


def put_on_card(card: Path, measured: str) -> None:
    head, rest = card.read_text().split(_TABLE_BEGINS)
    card.write_text(f"{head}{_TABLE_BEGINS}\n{measured}\n{_TABLE_ENDS}{rest.split(_TABLE_ENDS)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("worker/demo_model"))
    parser.add_argument("--server", metavar="URL", help="ask this server, which serves the model, instead")
    parser.add_argument("--questions", type=int, default=100, help="at most so many per topic")
    parser.add_argument("--card", action="store_true", help="write the table into the model card")
    parser.add_argument("--transcript", action="store_true", help="chat instead of measuring")
    parser.add_argument("--verbose", action="store_true", help="show the wrong replies")
    args = parser.parse_args()
    chat = ServedChat(args.server) if args.server else Chat(args.model)
    if args.transcript:
        print_transcript(chat)
        return
    measured = table(chat, args.questions, args.verbose)
    if args.card:
        put_on_card(args.model / "README.md", measured)


if __name__ == "__main__":
    main()
