"""What the handlers share; made once per process, in `app.py`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from gateway.admission import Admission
from gateway.advisor import Advisor
from gateway.advisory_budget import AdvisoryBudgets
from gateway.advisory_metrics import AdvisoryMetrics
from gateway.chat_template import ChatTemplate
from gateway.config import GatewayConfig
from gateway.engine_client import EngineClient, EngineDeadError
from gateway.metrics import SERVED_CLASSES, Metrics
from gateway.offline.store import OfflineStore
from gateway.open_generations import OpenGenerations
from gateway.protocol.errors import NotFoundError, UnavailableError
from gateway.tokenize import Tokenizer
from gateway.typing_webhook import TypingWebhook
from schedcore.types import EngineInfo, RequestClass, SamplingParams


@dataclass(slots=True, eq=False)
class Services:
    config: GatewayConfig
    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    stop_token_ids: tuple[int, ...] = ()  # the model's ends of sequence
    sampling: SamplingParams = field(default_factory=SamplingParams)  # the checkpoint's defaults
    admissions: dict[RequestClass, Admission] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], float] = time.monotonic
    created: int = field(default_factory=lambda: int(time.time()))  # of the models, for /v1/models
    request_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    open: OpenGenerations = field(default_factory=OpenGenerations)
    offline: OfflineStore | None = None  # None: no files and batches
    advisory_metrics: AdvisoryMetrics = field(default_factory=AdvisoryMetrics)
    advisory_budgets: AdvisoryBudgets = field(init=False)
    advisor: Advisor = field(init=False)
    typing_webhook: TypingWebhook = field(init=False)
    is_draining: bool = False

    def __post_init__(self) -> None:
        for request_class in SERVED_CLASSES:
            admission = Admission(self.config.max_queue_requests, self.config.max_queue_tokens)
            self.admissions[request_class] = admission
        self.advisory_budgets = AdvisoryBudgets(self.config)
        self.typing_webhook = TypingWebhook(self.config)
        self.advisor = Advisor(self.config, self.engine, self.advisory_metrics, self.clock, self.request_ids)

    def ready_engine(self) -> EngineInfo:
        """Raises UnavailableError while there is no engine, or not yet, or while the server shuts down."""
        if self.is_draining:
            raise UnavailableError("The server is shutting down.", code="shutting_down")
        try:
            return self.engine.info
        except EngineDeadError as error:
            raise UnavailableError(str(error), code=error.code, headers={"Retry-After": "5"}) from None

    def model_name(self, requested: str | None) -> str:
        """The name to show. Raises NotFoundError if it is not one that is served."""
        names = self.config.served_model_names
        if requested is None:
            return names[0]
        if requested in names:
            return requested
        raise NotFoundError(f"The model '{requested}' does not exist.", param="model", code="model_not_found")


SERVICES = web.AppKey("SERVICES", Services)
