"""A request that somebody waits for: admitted, submitted, limited in time, measured; around an exchange."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from gateway.advisories.announcement_table import Announcement
from gateway.engine.classify import Profile
from gateway.engine.engine_client import EngineDeadError
from gateway.generation.admission import Refusal, Ticket
from gateway.generation.choice import Choice
from gateway.generation.exchange import Exchange
from gateway.generation.prepare import PreparedRequest
from gateway.generation.request_figures import RequestFigures
from gateway.generation.serving import Serving
from gateway.protocol.errors import ApiError, DeadlineError, QueueFullError, ResourceUnavailableError, UnavailableError
from gateway.protocol.generation import GenerationRequest


def check_admission(serving: Serving, request: GenerationRequest, profile: Profile) -> None:
    """What can be said before the prompt is made and tokenised: the cheap refusals.

    Raises NotFoundError, UnavailableError, QueueFullError, ResourceUnavailableError.
    """
    serving.model.name(request.model)
    serving.ready_engine()
    refusal = serving.admissions[profile.request_class].refusal(request.num_requests, profile.tenant)
    if refusal is not None:
        raise _refused(serving, profile, refusal)


def _refused(serving: Serving, profile: Profile, refusal: Refusal) -> ApiError:
    serving.metrics.of_class[profile.request_class].num_refused += 1
    kind = ResourceUnavailableError if profile.is_offline else QueueFullError
    return kind(refusal.reason, retry_after_seconds=refusal.retry_after_seconds)


class Generation:
    """A context manager: entering asks admission and submits, leaving ends whatever is still open."""

    def __init__(self, serving: Serving, prepared: PreparedRequest, arrived_at: float) -> None:
        self.profile = prepared.profile
        self.arrived_at = arrived_at
        self._serving = serving
        self._prepared = prepared
        self._requests = prepared.requests
        metrics = serving.metrics.of_class[self.profile.request_class]
        self._figures = RequestFigures(metrics, prepared, arrived_at, self._begin)
        self._admission = serving.admissions[self.profile.request_class]
        self._ticket: Ticket | None = None  # None: not asked
        self._announcement: Announcement | None = None  # what an advisory announced, until the first token
        self._resources = contextlib.ExitStack()

    @property
    def first_token_at(self) -> float | None:
        return self._figures.first_token_at

    @property
    def seconds_left(self) -> float | None:
        """Of the time that a request may take."""
        timeout_ms = self._timeout_ms
        return max(0.0, self.arrived_at + timeout_ms / 1e3 - self._serving.clock()) if timeout_ms else None

    @property
    def _timeout_ms(self) -> float:
        config = self._serving.config
        return config.flex_timeout_ms if self.profile.is_offline else config.request_timeout_ms

    @property
    def num_prompt_tokens(self) -> int:
        return self._prepared.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return self._prepared.num_output_tokens

    def __enter__(self) -> Exchange:
        """Raises QueueFullError or UnavailableError. Whatever it raises, nothing stays taken."""
        serving, profile = self._serving, self.profile
        with contextlib.ExitStack() as taken:
            self._ticket = self._admit()
            taken.callback(self._leave_queue)
            try:
                stream = taken.enter_context(serving.resumption.stream(self._requests))
            except EngineDeadError as error:
                raise UnavailableError(str(error), code=error.code) from None
            exchange = Exchange(stream, self._prepared, serving.clock, self._figures)
            self._announcement = serving.advisor.take_announcement(profile, self.arrived_at)
            if profile.is_offline:
                serving.flex.begin(profile.tenant, len(self._requests))
                taken.callback(self._end_flex)
            serving.open.add(exchange)
            taken.callback(serving.open.remove, exchange)
            self._limit_time(exchange, taken)
            self._resources = taken.pop_all()
        return exchange

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._resources.close()
        self._figures.given_up(has_failed=isinstance(e, ApiError))

    def _admit(self) -> Ticket:
        num_tokens = sum(len(request.prompt_token_ids) for request in self._requests)
        answer = self._admission.admit(len(self._requests), num_tokens, self.profile.tenant)
        if isinstance(answer, Refusal):
            raise _refused(self._serving, self.profile, answer)
        return answer

    def _leave_queue(self) -> None:
        if self._ticket is not None:
            self._admission.leave(self._ticket, self._serving.clock())

    def _end_flex(self) -> None:
        cost = self.num_prompt_tokens + self.num_output_tokens
        self._serving.flex.end(self.profile.tenant, len(self._requests), cost)

    def _limit_time(self, exchange: Exchange, taken: contextlib.ExitStack) -> None:
        if (seconds := self.seconds_left) is not None:
            limit = self._timeout_ms / 1e3
            error = DeadlineError(f"The request took longer than {limit:g} seconds.")
            timer = asyncio.get_running_loop().call_later(seconds, exchange.fail, error)
            taken.callback(timer.cancel)

    def _begin(self, choice: Choice, now: float) -> None:
        """The first token of all: it waits no longer; and was an advisory worth its while?"""
        if self._ticket is not None:
            self._admission.leave(self._ticket, now)
        if self._announcement is not None:
            self._serving.advisor.served(self._announcement, choice.num_cached_tokens)
            self._announcement = None
