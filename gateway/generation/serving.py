"""What serving a request needs besides the request; made once per process, by `gateway/services.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.advisories.advisor import Advisor
from gateway.config.config import GatewayConfig
from gateway.config.target_defaults import TargetDefaults
from gateway.engine.engine_client import EngineClient, EngineDeadError
from gateway.fleet.other_gateways import OthersWork
from gateway.generation.admission import Admission
from gateway.generation.flex_work import FlexWork
from gateway.generation.grammar_checks import GrammarChecks
from gateway.generation.open_generations import OpenGenerations
from gateway.generation.response_store import ResponseStore
from gateway.metrics.metrics import SERVED_CLASSES, Metrics
from gateway.model.served_model import ServedModel
from gateway.protocol.errors import UnavailableError
from gateway.resumption.resumption import Resumption
from schedcore.api.types import EngineInfo, RequestClass


@dataclass(slots=True, eq=False)
class Serving:
    config: GatewayConfig
    engine: EngineClient
    model: ServedModel
    advisor: Advisor
    request_ids: Iterator[int]
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], float] = time.monotonic
    open: OpenGenerations = field(default_factory=OpenGenerations)
    flex: FlexWork = field(default_factory=FlexWork)
    responses: ResponseStore = field(init=False)
    admissions: dict[RequestClass, Admission] = field(init=False)
    target_defaults: TargetDefaults = field(init=False)
    grammar_checks: GrammarChecks = field(init=False)
    resumption: Resumption = field(init=False)
    is_draining: bool = False

    def __post_init__(self) -> None:
        config = self.config
        self.responses = ResponseStore(config.max_response_bytes)
        self.target_defaults = config.target_defaults
        self.grammar_checks = GrammarChecks(self.model.tokenizer.pool)
        wait_seconds = config.resume_wait_ms / 1e3
        self.resumption = Resumption(self.engine, self.metrics.resumption, self.clock, wait_seconds)
        self.admissions = {
            request_class: Admission(config.max_queue_requests, config.max_queue_tokens)
            for request_class in SERVED_CLASSES
        }

    def note_others(self, work: OthersWork) -> None:
        """Of other gateways that have the same engines."""
        for request_class, admission in self.admissions.items():
            admission.note_others(work.waiting.get(request_class, {}))
        self.flex.note_others(work.served)

    def ready_engine(self) -> EngineInfo:
        """Raises UnavailableError while there is no engine, or not yet, or while the server shuts down."""
        if self.is_draining:
            raise UnavailableError("The server is shutting down.", code="shutting_down")
        try:
            return self.engine.info
        except EngineDeadError as error:
            raise UnavailableError(str(error), code=error.code, headers={"Retry-After": "5"}) from None
