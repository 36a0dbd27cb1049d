"""A response object of /v1/responses, from its creation to its end, and where it is kept."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.generation.prepare import PreparedRequest
from gateway.generation.response_store import ResponseStore, StoredResponse
from gateway.model.chat_template import num_content_characters
from gateway.protocol.chat import Message
from gateway.protocol.output.tools import CalledFunction, EarlierCall
from gateway.protocol.response import ResponseHead
from gateway.protocol.responses import (
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    ResponsesRequest,
    ResponsesUsage,
)


class GrowingResponse:
    def __init__(self, head: ResponseHead, request: ResponsesRequest, prepared: PreparedRequest) -> None:
        self.head = dataclasses.replace(head, id=f"resp_{secrets.token_hex(24)}")
        self.message_id = f"msg_{secrets.token_hex(24)}"
        self.reasoning_id = f"rs_{secrets.token_hex(24)}"
        self.store: ResponseStore | None = None  # None: it is not kept
        self._request = request
        self._prepared = prepared

    @property
    def id(self) -> str:
        return self.head.id

    @property
    def asked_messages(self) -> tuple[Message, ...]:
        """The conversation without its answer."""
        return tuple(self._request.messages)

    @property
    def end_status(self) -> str:
        """REQUIRES: its choice has finished."""
        return "incomplete" if self._prepared.choices[0].finish_reason == "length" else "completed"

    def reasoning_item(self, text: str, status: str | None = None) -> ReasoningItem:
        """status: None: as the response ends."""
        return ReasoningItem(self.reasoning_id, status or self.end_status, [ReasoningText(text)])

    def finished(
        self,
        text: OutputText,
        calls: Sequence[FunctionCallItem] = (),
        reasoning: str = "",
        num_calls_before: int = 0,
    ) -> ResponseObject:
        """The whole response, kept if it was to be. With nothing else in it, an empty text is a message, too.

        num_calls_before: calls that stand before the message.
        """
        status = self.end_status
        is_cut = status == "incomplete"
        has_more = bool(calls) or (is_cut and bool(reasoning))
        message = [OutputMessage(self.message_id, status, [text])] if text.text or not has_more else []
        thought = (
            [self.reasoning_item(reasoning, None if is_cut and not (message or calls) else "completed")]
            if reasoning
            else []
        )
        body = self.described(
            status=status,
            output=[*thought, *calls[:num_calls_before], *message, *calls[num_calls_before:]],
            completed_at=int(time.time()),
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            usage=self._usage(),
        )
        self._keep(body, text.text, calls, reasoning)
        return body

    def described(self, status: str, **more: Any) -> ResponseObject:
        """What is known of it from the start, and what has become of it."""
        asked, sampling = self._request.asked, self._prepared.requests[0].sampling
        fields: dict[str, Any] = {
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "previous_response_id": asked.previous_response_id,
            "prompt_cache_key": asked.prompt_cache_key,
            "top_logprobs": asked.top_logprobs or 0,
            "user": asked.user,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "background": bool(asked.background),
            "output": [],
        }
        return ResponseObject(
            id=self.head.id,
            created_at=self.head.created,
            model=self.head.model,
            status=status,
            metadata=asked.metadata or {},
            service_tier=None if self.head.service_tier is UNSET else self.head.service_tier,
            store=self.store is not None,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            text={"format": asked.text.format if asked.text and asked.text.format else {"type": "text"}},
            tool_choice=asked.tool_choice or "auto",
            tools=asked.tools or [],
            **(fields | more),
        )

    def _usage(self) -> ResponsesUsage:
        usage = self._prepared.usage()
        details = usage.completion_tokens_details
        return ResponsesUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(0 if details is UNSET else details.reasoning_tokens),
            usage.total_tokens,
        )

    def _keep(self, response: ResponseObject, text: str, calls: Sequence[FunctionCallItem], reasoning: str) -> None:
        if self.store is None:
            return
        called = [EarlierCall(CalledFunction(call.name, call.arguments), call.call_id, "function") for call in calls]
        answer = Message("assistant", text, tool_calls=called or None, reasoning_content=reasoning or None)
        messages = (*self._request.messages, answer)
        num_characters = sum(num_content_characters(m) + len(m.reasoning_content or "") for m in messages)
        stored = StoredResponse.of(response.id, msgspec.json.encode(response), messages, num_characters)
        self.store.put(self._prepared.profile.tenant, stored)
