"""The engine that computes nothing keeps the protocol's promises."""

from __future__ import annotations

import threading
from pathlib import Path

from bench.run.gateway.null_engine import NullEngine
from fakes.gateway_peer import GatewayPeer
from schedcore.api import wire
from schedcore.api.types import EngineRequest, FinishReason
from schedcore.serving.gateway_link import GatewayLink

JOIN_SECONDS = 30


def test_every_request_gets_its_tokens_and_one_final_delta(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 'engine'}"
    link = GatewayLink(endpoint)
    thread = threading.Thread(target=NullEngine(link, tokens_per_second=1e6).run)
    thread.start()
    with GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Hello())
        assert isinstance(gateway.wait_for(lambda _: True), wire.Ready)
        gateway.send(*(wire.Submit(EngineRequest(i, [1, 2], max_tokens=3 + i)) for i in range(4)))
        gateway.wait_for_final(*range(4))
        assert [len(gateway.tokens(i)) for i in range(4)] == [3, 4, 5, 6]
        reasons = [[d.finish_reason for d in gateway.deltas[i] if d.finish_reason] for i in range(4)]
        assert reasons == [[FinishReason.LENGTH]] * 4
        gateway.send(wire.Shutdown())
        thread.join(JOIN_SECONDS)
    assert not thread.is_alive()
    link.close()
