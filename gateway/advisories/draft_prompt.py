"""The beginning of a prompt whose end is still being written, as tokens that its later prompt begins with.

Two things may change when more text follows: what the chat template writes, and how the text at the seam falls into
tokens. Against the first, the conversation is rendered with a mark where the draft ends, and what stands before the
mark is kept: the user's turn stays open; white space at the draft's end, which a template may trim, is left out.
Against the second, `Tokenizer.encode_prefix` keeps only tokens that no continuation changes.
Where a template or tokenizer escapes both, the tokens match no prompt: work is lost, never an answer changed.
"""

from __future__ import annotations

from gateway.model.chat_template import MAX_INLINE_RENDERED, MESSAGE_SIZE, ChatTemplate, num_content_characters
from gateway.model.tokenize import Asker, Tokenizer
from gateway.model.work_pool import in_one_step
from gateway.protocol.advisories import AdvisoryRequest
from gateway.protocol.chat import Message
from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import EngineInfo

_MARK = "\ue000\uf8ff"  # private use: no template looks for it, no text is likely to hold it


async def draft_token_ids(
    template: ChatTemplate | None, tokenizer: Tokenizer, request: AdvisoryRequest, info: EngineInfo, tenant: str = ""
) -> list[int]:
    """Raises InvalidRequestError where there is no template, or it refuses the messages."""
    asker = Asker(tenant, 2 * info.max_model_len, "draft")  # what is beyond the context is left out
    if isinstance(request.prompt, list):
        if max(request.prompt) >= info.vocab_size:
            raise InvalidRequestError(f"The vocabulary has only {info.vocab_size} tokens.", param="prompt")
        return request.prompt
    if request.prompt is not None:
        return await tokenizer.encode_prefix(request.prompt, request.add_special_tokens is not False, asker)
    if template is None:
        raise InvalidRequestError(
            "This model has no chat template: give 'prompt' instead of 'messages'.",
            param="messages",
            code="no_chat_template",
        )
    messages = request.messages or []
    size = sum(map(num_content_characters, messages)) + len(request.draft or "") + MESSAGE_SIZE * len(messages)
    if size <= MAX_INLINE_RENDERED:
        text = draft_text(template, request)
    else:
        text = await tokenizer.pool.run(in_one_step(draft_text, template, request), size, tenant)
    return await tokenizer.encode_prefix(text, bool(request.add_special_tokens), asker)


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
    return _without_end(text, request.draft or "") if found else ""


def _without_end(text: str, draft: str) -> str:
    end = draft[len(draft.rstrip()) :]
    return text.removesuffix(end)
