"""A whole gateway in this process, without sockets: bytes in, bytes out, and nothing may stay open.

The engine is a fake one, the database a real one in a temporary folder. Connections are closed by the request's own
`Connection: close`, so that an answer is known to be complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from fakes.byte_tokenizer import END, write_byte_checkpoint
from fakes.eventually import eventually
from fakes.fake_engine import INFO, FakeEngine
from gateway.app import create_app
from gateway.config.config import GatewayConfig
from gateway.engine.delta_stream import DeltaStream
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import Checkpoint
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Tokenizer
from gateway.offline.store.accounts import Quota
from gateway.offline.store.store import OfflineStore
from gateway.services import Services
from schedcore.api import wire
from schedcore.api.types import Advisory, EngineInfo, EngineRequest, SessionState

ANSWER_SECONDS = 20.0  # a hang, on any machine
MAX_MODEL_LEN = 48
SECRET = "whsec_" + "A" * 43 + "="


class Transport(asyncio.Transport):
    """The server's end of a connection that lies in memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8000)})
        self.written = bytearray()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.protocol: Any = None
        self._loop = loop

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed.done()

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_reading(self) -> bool:
        return True


class _Complaints(logging.Handler):
    """What the gateway logs as its own failure, and what escapes from a callback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))

    def handle_context(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.found.append(f"{context['message']}: {context.get('exception')!r}")


class _EncodingEngine(FakeEngine):
    """Everything passes through the encoding of the line to a real engine."""

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        return super().stream([self._over_the_line(wire.Submit(request)).request for request in requests])

    async def advise(self, advisory: Advisory) -> SessionState:
        return await super().advise(self._over_the_line(wire.Advise(advisory)).advisory)

    def _over_the_line(self, message: Any) -> Any:
        return wire.decode_to_engine(wire.encode(message))


class InProcessServer:
    def __init__(self, **options: Any) -> None:
        """options: GatewayConfig fields."""
        folder = Path(tempfile.mkdtemp(prefix="hocket-fuzz-"))
        checkpoint = Checkpoint.read(write_byte_checkpoint(folder / "model"))
        config = GatewayConfig(
            data_dir=str(folder / "data"),
            drain_timeout_ms=100.0,
            enable_access_log=False,
            typing_webhook_secrets=(SECRET,),
            max_advisories_per_second=1e9,
            max_advisory_bytes_per_second=1e12,
            **options,
        )
        self.engine = _EncodingEngine()
        fields = {name: getattr(INFO, name) for name in INFO.__struct_fields__}
        self.engine.info_to_be = EngineInfo(**(fields | {"max_model_len": MAX_MODEL_LEN}))
        quota = Quota(2**24, 10_000)
        self.store = OfflineStore.open(folder / "data", None, quota, config.webhook_targets)
        assert checkpoint.chat_template is not None
        self.services = Services(
            config=config,
            engine=self.engine,
            model=ServedModel(
                config.served_model_names,
                Tokenizer.load(checkpoint),
                ChatTemplate(checkpoint.chat_template, checkpoint.special_tokens),
                (END,),
                checkpoint.sampling,
            ),
            offline=self.store,
        )
        self.loop = asyncio.new_event_loop()
        self._complaints = _Complaints()
        self.loop.set_exception_handler(self._complaints.handle_context)
        for name in ("hocket", "gateway", "asyncio"):  # aiohttp logs what clients do wrong, too
            logging.getLogger(name).addHandler(self._complaints)
            logging.getLogger(name).propagate = False
        logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
        self._runner = web.AppRunner(create_app(self.services), access_log=None, handler_cancellation=True)
        self.loop.run_until_complete(self._runner.setup())

    def answer(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body. `request` must be complete, and end its connection. Raises what was logged."""
        return self.loop.run_until_complete(self._answer(request))

    async def _answer(self, request: bytes) -> tuple[int, bytes, bytes]:
        assert self._runner.server is not None
        self._complaints.found.clear()
        transport = Transport(self.loop)
        protocol = self._runner.server()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(request)
        await asyncio.wait_for(asyncio.shield(transport.closed), ANSWER_SECONDS)
        await asyncio.sleep(0)
        await asyncio.wait_for(self.services.background.until_none(), ANSWER_SECONDS)
        if not self.services.serving.open:  # rows of a batch that an earlier request has created end by themselves
            with contextlib.suppress(AssertionError):
                await eventually(lambda: self.engine.num_open == 0, ANSWER_SECONDS)
        self._check_nothing_is_open()
        if self._complaints.found:
            raise AssertionError("the gateway failed:\n" + "\n".join(self._complaints.found))
        return parse(bytes(transport.written))

    def _check_nothing_is_open(self) -> None:
        assert len(self.services.serving.open) == 0, "a generation is open"
        assert self.engine.num_open == 0, "a request is open in the engine"
        for request_class, admission in self.services.serving.admissions.items():
            held = (admission.num_requests, admission.num_tokens)
            assert held == (0, 0), f"{request_class.name}: places in the queue are held by nobody: {held}"


def parse(answer: bytes) -> tuple[int, bytes, bytes]:
    """Of the last response: `100 Continue` may stand before it."""
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    assert words[0] in (b"HTTP/1.1", b"HTTP/1.0"), answer[:100]
    return int(words[1]), head, body
