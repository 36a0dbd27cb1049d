"""Tools for a chat template that knows none: said in a system message, calls and results in plain messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_INSTRUCTIONS = (
    "You can call functions. To call one or several, answer with nothing but a JSON list of calls, each "
    '{"name": <the function\'s name>, "arguments": <an object that follows its parameters>}. Else answer in plain '
    "text. The functions:"
)
Message = dict[str, Any]


def with_plain_tools(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    """Messages of the roles system, user and assistant, with text and images only. tools: as templates get them."""
    plain: list[Message] = []
    names: dict[str, str] = {}  # of functions, by the id of the call
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call.get("id") or ""] = call["function"]["name"]
        _append(plain, _as_plain(message, names))
    if not tools:
        return plain
    said = "\n".join([_INSTRUCTIONS, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])
    if plain and plain[0]["role"] == "system":
        plain[0] = plain[0] | {"content": f"{plain[0]['content']}\n\n{said}"}
    else:
        plain.insert(0, {"role": "system", "content": said})
    return plain


def _as_plain(message: Message, names: dict[str, str]) -> Message:
    if message["role"] in ("tool", "function"):
        name = message.get("name") or names.get(message.get("tool_call_id") or "", "the function")
        return {"role": "user", "content": f"Result of {name}: {message['content']}"}
    if not message.get("tool_calls"):
        return message
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or {}}
        for call in message["tool_calls"]
    ]
    said = json.dumps(calls, ensure_ascii=False)
    content = f"{message['content']}\n{said}" if message["content"] else said
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return kept | {"content": content}


def _append(plain: list[Message], message: Message) -> None:
    """Results and what the user says then are one turn: many templates want turns to alternate."""
    was_result = bool(plain) and plain[-1]["role"] == "user" and _is_result(plain[-1]["content"])
    if was_result and message["role"] == "user":
        plain[-1] = plain[-1] | {"content": _joined(plain[-1]["content"], message["content"])}
    else:
        plain.append(message)


def _is_result(content: str | list[dict[str, str]]) -> bool:
    return isinstance(content, str) and content.startswith("Result of ")


def _joined(before: str, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    """content: parts, where images are among them."""
    return f"{before}\n{content}" if isinstance(content, str) else [{"type": "text", "text": f"{before}\n"}, *content]
