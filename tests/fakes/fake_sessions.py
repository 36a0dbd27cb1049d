"""Sessions of an engine without a model: every request's tokens are cached, a known session is pinned."""

from __future__ import annotations

from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, SessionAction, SessionState

BYTES_PER_TOKEN = 100
LEASE_MS = 30_000.0

_ACTIONS = {
    AdvisoryEvent.TYPING: SessionAction.PIN,
    AdvisoryEvent.AGENT_STEP: SessionAction.PIN,
    AdvisoryEvent.CANCEL: SessionAction.RELEASE,
    AdvisoryEvent.QUERY: SessionAction.NONE,
    AdvisoryEvent.RELEASE: SessionAction.RELEASE,
}


class FakeSessions:
    def __init__(self) -> None:
        self._num_tokens: dict[tuple[str, str, str], int] = {}

    def note(self, request: EngineRequest) -> None:
        if request.session_id:
            key = (request.tenant, request.cache_salt, request.session_id)
            self._num_tokens[key] = len(request.prompt_token_ids)

    def advise(self, advisory: Advisory) -> SessionState:
        key = (advisory.tenant, advisory.cache_salt, advisory.session_id)
        if key not in self._num_tokens:
            return SessionState(advisory.request_id, is_known=False)
        num_tokens, action = self._num_tokens[key], _ACTIONS[advisory.event]
        num_cached = num_tokens  # the rest of a draft is computed
        if advisory.draft_token_ids:
            num_tokens, action = len(advisory.draft_token_ids), SessionAction.DRAFT_PREFILL
        if advisory.event is AdvisoryEvent.RELEASE:
            del self._num_tokens[key]
        holds = action in (SessionAction.PIN, SessionAction.DRAFT_PREFILL)
        return SessionState(
            advisory.request_id,
            is_known=True,
            num_tokens=num_tokens,
            tier_tokens=[num_cached, 0, 0],
            tier_bytes=[num_tokens * BYTES_PER_TOKEN, 0, 0],
            action=action,
            lease_ms=(advisory.lease_ms or LEASE_MS) if holds else None,
        )
