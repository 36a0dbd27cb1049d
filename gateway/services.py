"""What the handlers share; made once per process, in `cli/serve.py`."""

from __future__ import annotations

import itertools
import time

from aiohttp import web

from gateway.advisories.advisor import Advisor
from gateway.advisories.advisory_budget import AdvisoryBudgets
from gateway.advisories.typing_webhook import TypingWebhook
from gateway.answers.responses.background import BackgroundResponses
from gateway.base.supervision import Supervisor
from gateway.config.config import GatewayConfig
from gateway.engine.engine_client import EngineClient
from gateway.fleet.fleet_engine import FleetEngine
from gateway.generation.serving import Serving
from gateway.http.upload_pace import UploadPace
from gateway.metrics.advisory_metrics import AdvisoryMetrics
from gateway.model.served_model import ServedModel
from gateway.offline.store.store import OfflineStore


class Services:
    """Whoever needs less takes less: `serving`, `model`, the store."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: EngineClient,
        model: ServedModel,
        offline: OfflineStore | None = None,
        supervisor: Supervisor | None = None,
        fleet: FleetEngine | None = None,
    ) -> None:
        """offline: None: no files and batches. fleet: the engine, where it is one of nodes."""
        self.config = config
        self.model = model
        self.offline = offline
        self.fleet = fleet
        self.supervisor = Supervisor() if supervisor is None else supervisor  # an empty one is falsy
        self.created = int(time.time())  # the models, for /v1/models
        self.advisory_metrics = AdvisoryMetrics()
        self.advisory_budgets = AdvisoryBudgets(config)
        self.typing_webhook = TypingWebhook(config)
        clock, request_ids = time.monotonic, itertools.count(1)
        advisor = Advisor(config, engine, self.advisory_metrics, clock, request_ids, self.advisory_budgets)
        self.serving = Serving(config, engine, model, advisor, request_ids, clock=clock)
        if fleet is not None:
            fleet.listen_to_others(self.serving.note_others)
        self.background = BackgroundResponses(self.serving)
        self.upload_pace = UploadPace(lambda: len(self.serving.open) > 0, clock)

    def now(self) -> float:
        """On the clock that requests are measured with."""
        return self.serving.clock()


SERVICES = web.AppKey("SERVICES", Services)
