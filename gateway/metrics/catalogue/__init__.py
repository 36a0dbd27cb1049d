"""Every metric of a server, chapter by chapter. `/metrics` and a part of docs/metrics.md are made of it."""

from __future__ import annotations

from gateway.metrics.catalogue.advisories import ADVISORIES
from gateway.metrics.catalogue.engine import ENGINE
from gateway.metrics.catalogue.forms import FORMS
from gateway.metrics.catalogue.nodes import NODES
from gateway.metrics.catalogue.offline import OFFLINE
from gateway.metrics.catalogue.process import PROCESS
from gateway.metrics.catalogue.requests import REQUESTS
from gateway.metrics.catalogue.servers import SERVERS
from gateway.metrics.catalogue.tiers import TIERS
from gateway.metrics.catalogue.vllm import VLLM

CATALOGUE = (REQUESTS, ENGINE, SERVERS, NODES, TIERS, FORMS, OFFLINE, ADVISORIES, PROCESS, VLLM)
