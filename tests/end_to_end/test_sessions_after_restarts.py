"""kill -9 of the engine, and a whole server that starts again: an advisory finds the session and its cache on disk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import aiohttp

from fakes.eventually import eventually
from fakes.served import Server, serving

SESSION = "chat 17"
BLOCK_SIZE = 16
TEXT = random.Random(1).choices(range(300, 900), k=30 * BLOCK_SIZE)  # token ids


async def ask(server: Server, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    async with aiohttp.request(method, f"{server.url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def turn(server: Server, num_blocks: int) -> int:
    """A turn whose prompt has so many blocks; tokens of it that were cached. Its answer completes no block."""
    prompt = TEXT[: num_blocks * BLOCK_SIZE]
    body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "session_id": SESSION}
    usage = (await ask(server, "POST", "/v1/completions", body))["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def until_on_disk(server: Server, folder: Path, num_blocks: int) -> None:
    """The session's blocks, and what the book says of it."""
    tiers = (await ask(server, "GET", f"/v1/sessions/{SESSION}"))["tiers"].values()
    block_bytes = BLOCK_SIZE * sum(t["bytes"] for t in tiers) // sum(t["tokens"] for t in tiers)
    await eventually(lambda: server.metric("hocket_tier_bytes", tier="disk") >= num_blocks * block_bytes, seconds=60)
    await eventually(lambda: any(not path.suffix for path in (folder / "sessions").iterdir()), seconds=60)


async def check_advisory(server: Server, num_blocks: int) -> None:
    """Of a session that was known to another engine: the disk has it all, and the device has it soon."""
    state = await ask(server, "POST", "/v1/advisories", {"session_id": SESSION, "lease_ms": 60_000})
    assert (state["outcome"], state["action"]) == ("accepted", "prefetch")
    assert state["num_tokens"] == num_blocks * BLOCK_SIZE + 7  # with the answer, but for its last token
    assert [state["tiers"][tier]["tokens"] for tier in ("device", "host", "disk")] == [0, 0, num_blocks * BLOCK_SIZE]
    await eventually(lambda: server.metric("hocket_tier_moved_blocks_total", move="load") >= num_blocks, seconds=60)
    assert server.metric("hocket_tier_moved_blocks_total", move="fetch") == num_blocks


async def test_a_session_is_known_after_a_kill_and_after_a_restart(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    tiers = ("--host-cache-bytes", "256M", "--disk-cache-dir", str(disk), "--disk-cache-bytes", "1G")
    with serving(tmp_path, *tiers) as server:
        assert await turn(server, 20) == 0
        await until_on_disk(server, disk, 20)
        server.engine.kill()
        await eventually(lambda: server.metric("hocket_engine_restarts_total") == 1, seconds=60)
        await eventually(lambda: server.health() == 200, seconds=60)
        await check_advisory(server, 20)
        assert await turn(server, 24) == 20 * BLOCK_SIZE
        await until_on_disk(server, disk, 24)
    with serving(tmp_path, *tiers) as server:
        await check_advisory(server, 24)
        assert await turn(server, 30) == 24 * BLOCK_SIZE
    assert not [path for path in disk.rglob("*") if path.stat().st_mode & 0o077]
