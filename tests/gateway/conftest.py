"""A gateway over a fake engine, reached over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fakes.byte_tokenizer import END, write_byte_checkpoint
from fakes.fake_engine import FakeEngine
from fakes.leak_check import LeakCheck
from fakes.loop_budget import LoopCosts, loop_budget
from gateway.app import create_app
from gateway.config.config import GatewayConfig
from gateway.embedding.pooler import Pooler
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import Checkpoint
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Tokenizer
from gateway.offline.store.accounts import Quota
from gateway.offline.store.store import OfflineStore
from gateway.reasoning.reasoning_format import named
from gateway.services import Services

type_of_make = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.fixture(autouse=True)
def loop_costs() -> Iterator[LoopCosts]:
    """No test may hold its event loop for longer than the budget."""
    with loop_budget() as costs:
        yield costs


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.read(write_byte_checkpoint(tmp_path_factory.mktemp("checkpoint")))


def make_services(engine: FakeEngine, checkpoint: Checkpoint, **config: Any) -> Services:
    template = checkpoint.chat_template
    settings = GatewayConfig(**({"drain_timeout_ms": 100.0} | config))
    return Services(
        config=settings,
        engine=engine,
        model=ServedModel(
            settings.served_model_names,
            Tokenizer.load(checkpoint),
            ChatTemplate(template, checkpoint.special_tokens) if template else None,
            (END,),
            checkpoint.sampling,
            tokenizer_config=checkpoint.tokenizer_config,
            pooler=Pooler.read(checkpoint.directory, settings.pooler_config),
            reasoning_format=named(settings.reasoning_parser, template or ""),
            json_has_space=settings.json_has_space,
        ),
        offline=_open_store(settings),
    )


def _open_store(config: GatewayConfig) -> OfflineStore | None:
    """Only tests that name a data directory have files and batches."""
    if config.data_dir is None:
        return None
    quota = Quota(config.max_stored_bytes, config.max_pending_rows)
    return OfflineStore.open(Path(config.data_dir), config.database_url, quota, config.webhook_targets)


@pytest.fixture
async def leaks() -> AsyncIterator[LeakCheck]:
    """Whatever gateway a test makes: nothing of it is left at the test's end, and no callback has failed."""
    check = LeakCheck()
    yield check
    await check.assert_closed()


@pytest.fixture(name="make_services")
def make_services_fixture(checkpoint: Checkpoint, leaks: LeakCheck) -> Callable[..., Services]:
    """make_services(engine, **GatewayConfig fields)"""
    return lambda engine, **config: leaks.watch(make_services(engine, checkpoint, **config))


@pytest.fixture
async def serve(checkpoint: Checkpoint, leaks: LeakCheck) -> AsyncIterator[type_of_make]:
    """serve(engine, **GatewayConfig fields) -> an HTTP client of a gateway over that engine."""
    clients: list[TestClient[Any, Any]] = []

    async def make(
        engine: FakeEngine, *, checkpoint: Checkpoint = checkpoint, headers: dict[str, str] | None = None, **config: Any
    ) -> TestClient[Any, Any]:
        app = create_app(leaks.watch(make_services(engine, checkpoint, **config)))
        server = TestServer(app)
        await server.start_server(access_log=None)
        client = TestClient(server, headers=headers)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def without_template(tmp_path: Path) -> Checkpoint:
    return Checkpoint.read(write_byte_checkpoint(tmp_path / "plain", chat_template=None))
