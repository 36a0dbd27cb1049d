"""The beginning of a prompt whose end is still being written, as tokens that its later prompt begins with.

Two things may change when more text follows: what the chat template writes, and how the text at the seam falls into
tokens. Against the first, the conversation is rendered with a mark where the draft ends, and what stands before the
mark is kept: the user's turn stays open. Against the second, `Tokenizer.encode_prefix` drops the last word.
Where a template or tokenizer escapes both, the tokens match no prompt: work is lost, never an answer changed.
"""

from __future__ import annotations

from gateway.chat_template import ChatTemplate
from gateway.protocol.advisories import AdvisoryRequest
from gateway.protocol.chat import Message
from gateway.protocol.errors import InvalidRequestError
from gateway.tokenize import Tokenizer
from schedcore.types import EngineInfo

_MARK = "\ue000\uf8ff"  # private use: no template looks for it, no text is likely to hold it


async def draft_token_ids(
    template: ChatTemplate | None, tokenizer: Tokenizer, request: AdvisoryRequest, info: EngineInfo
) -> list[int]:
    """Raises InvalidRequestError where there is no template, or it refuses the messages."""
    if isinstance(request.prompt, list):
        if max(request.prompt) >= info.vocab_size:
            raise InvalidRequestError(f"The vocabulary has only {info.vocab_size} tokens.", param="prompt")
        return request.prompt
    if request.prompt is not None:
        return await tokenizer.encode_prefix(request.prompt, request.add_special_tokens is not False)
    if template is None:
        raise InvalidRequestError(
            "This model has no chat template: give 'prompt' instead of 'messages'.",
            param="messages",
            code="no_chat_template",
        )
    return await tokenizer.encode_prefix(draft_text(template, request), bool(request.add_special_tokens))


def draft_text(template: ChatTemplate, request: AdvisoryRequest) -> str:
    """What every prompt begins with that has these messages and a next one that begins with the draft."""
    messages = request.messages or []
    if request.draft is None and messages and messages[-1].role in ("user", "tool"):
        return template.render(request.as_chat(messages))  # the next request's messages; only the answer is missing
    following = Message(role="user", content=(request.draft or "") + _MARK)
    try:
        text, found, _ = template.render(request.as_chat([*messages, following])).partition(_MARK)
    except InvalidRequestError:
        if request.draft is not None:
            raise
        return template.render(request.as_chat(messages))  # no user may speak next
    return text if found else ""
