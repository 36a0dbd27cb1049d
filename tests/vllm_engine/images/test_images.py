"""Requests with images in the engine, in process: Idefics 3's architecture, tiny. Needs vLLM: make test-vllm."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("vllm")

import vllm_engine.engine_process as process
from fakes.random_steering import RandomSteering
from fakes.tiny_families import write_family
from fakes.tiny_image_model import IMAGE_TOKEN, NAME, image
from fakes.vllm_crowd import GATEWAY, serve
from schedcore.api.config import EngineConfig
from schedcore.api.types import (
    EngineInfo,
    EngineRequest,
    ErrorCode,
    FinishReason,
    RequestClass,
    SamplingParams,
    TokenDelta,
)
from vllm_engine.engine import VllmEngine
from vllm_engine.first_estimate import BEFORE_ANY, estimates
from vllm_engine.images import image_prompts
from vllm_engine.make_advisor import make_advisor
from vllm_engine.steering import Steering

NUM_REQUESTS = 80
GREEDY = SamplingParams(temperature=0.0)
SIZES = ((60, 40), (24, 24), (33, 90))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmEngine, EngineInfo]]:
    config = EngineConfig(
        model=str(write_family(NAME, tmp_path_factory.mktemp("model"))),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        cache_memory_bytes=1 << 27,
        block_size=32,
        vllm_options=("num_gpu_blocks_override=65",),
    )
    engine, info = process.build_engine(config, time.monotonic())
    yield engine, info
    engine.close()


@pytest.fixture
def engine(served: tuple[VllmEngine, EngineInfo]) -> VllmEngine:
    made, _ = served
    made._core.scheduler.reset_prefix_cache()
    return made


def crowd(seed: int) -> list[EngineRequest]:
    """Some have the same images, some the same text before different ones, some none."""
    draw = random.Random(seed)
    prefix = [draw.randrange(10, 1000) for _ in range(40)]
    made = []
    for i in range(NUM_REQUESTS):
        images, prompt = [], list(prefix) if i % 3 else []
        for _ in range(draw.randrange(3)):
            number = draw.randrange(6)
            images.append(image(number, *SIZES[number % 3]))
            prompt += [IMAGE_TOKEN, *(draw.randrange(10, 1000) for _ in range(draw.randrange(30)))]
        prompt += [draw.randrange(10, 1000) for _ in range(draw.randint(1, 30))]
        sampling = GREEDY if i % 2 else SamplingParams(seed=i)
        kind = RequestClass.OFFLINE if i % 4 == 0 else RequestClass.ONLINE
        made.append(EngineRequest(i, prompt, draw.randint(1, 24), sampling, request_class=kind, images=images))
    return made


def run(engine: VllmEngine, requests: list[EngineRequest]) -> dict[int, list[TokenDelta]]:
    for request in requests:
        engine.add(GATEWAY, request)
    return finish(engine, [request.request_id for request in requests])


def finish(engine: VllmEngine, ids: list[int]) -> dict[int, list[TokenDelta]]:
    deltas: dict[int, list[TokenDelta]] = {i: [] for i in ids}
    num_ended = 0
    while num_ended < len(ids):
        engine.step()
        for delta in engine.take_deltas().get(GATEWAY, []):
            deltas[delta.request_id].append(delta)
            num_ended += delta.finish_reason is not FinishReason.NONE
    while engine.step():
        pass
    engine.check_invariants()
    return deltas


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def asked(request_id: int, *seeds: int, before: int = 4, **fields: Any) -> EngineRequest:
    prompt = [*range(20, 20 + before), *[IMAGE_TOKEN] * len(seeds), *range(60, 70)]
    images = [image(seed) for seed in seeds]
    return EngineRequest(request_id, prompt, **({"max_tokens": 8, "sampling": GREEDY, "images": images} | fields))


def test_steering_changes_no_token(engine: VllmEngine) -> None:
    """At random, and by our advisor; steps end in the middle of images, who is put out comes again."""
    expected = serve(engine, crowd(1), None)
    steering = RandomSteering(7)
    assert serve(engine, crowd(1), steering) == expected
    assert steering.num_preempted > 0
    scheduler = engine._core.scheduler
    advisor = make_advisor(scheduler, {"policy": "hocket"}, estimates(BEFORE_ANY))
    assert serve(engine, crowd(1), Steering(advisor, time.monotonic, scheduler.is_exact)) == expected
    assert len(set(map(tuple, expected.values()))) > NUM_REQUESTS // 2


def test_the_prompt_counts_with_its_images(engine: VllmEngine) -> None:
    (first, *_) = run(engine, [asked(1, 5)])[1]
    plain = run(engine, [asked(2, images=[])])[2][0]
    assert first.num_prompt_tokens is not None
    assert first.num_prompt_tokens > 15 + 6
    assert plain.num_prompt_tokens is None
    room = 512 - first.num_prompt_tokens
    (last,) = run(engine, [asked(3, 5, before=4 + room)])[3]
    assert last.error is not None
    assert last.error.code is ErrorCode.TOO_LONG
    assert "512 tokens" in last.error.message


def test_equal_tokens_with_other_images_share_nothing_behind_the_text(engine: VllmEngine) -> None:
    def ask(request_id: int, *seeds: int) -> tuple[list[int], int]:
        deltas = run(engine, [asked(request_id, *seeds, before=40)])[request_id]
        return tokens(deltas), deltas[0].num_cached_tokens

    once, num_cached = ask(1, 5, 6)
    assert num_cached == 0
    other, num_text_cached = ask(2, 7, 6)
    assert other != once
    assert num_text_cached == 32, "the block before the image, and no more"
    again, num_again_cached = ask(3, 5, 6)
    assert again == once
    assert num_again_cached > 32


def test_tenants_with_salts_share_no_image(engine: VllmEngine) -> None:
    for request_id, salt in enumerate(("a", "b", "a")):
        deltas = run(engine, [asked(request_id, 5, 6, before=40, cache_salt=salt)])[request_id]
        assert (deltas[0].num_cached_tokens > 0) == (request_id == 2)


def test_a_request_with_images_goes_on_elsewhere(engine: VllmEngine) -> None:
    whole = tokens(run(engine, [asked(1, 5, 6, max_tokens=12)])[1])
    for num in (1, 5, 11):
        begun = asked(2, 5, 6)
        prompt = [*begun.prompt_token_ids, *whole[:num]]
        rest = msgspec.structs.replace(begun, prompt_token_ids=prompt, num_prior_tokens=num, max_tokens=12 - num)
        assert tokens(run(engine, [rest])[2]) == whole[num:]


def test_what_cannot_be_read_is_refused(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**fields: Any) -> str:
        (delta,) = run(engine, [asked(1, 5, **fields)])[1]
        assert delta.error is not None
        assert delta.error.code is ErrorCode.INVALID
        return delta.error.message

    whole = image(5)
    assert "damaged" in refused(images=[b"GIF89a"])
    assert "none of PNG" in refused(images=[image(5, kind="BMP")])
    assert "decoded" in refused(images=[whole[: len(whole) // 2]])
    assert refused(images=[whole] * 2), "one token for two"
    assert "at most 16 images" in refused(images=[whole] * 17)
    monkeypatch.setattr(engine._images._grower, "limits", image_prompts.LIMITS.__class__(16, 1 << 24, 1000))  # type: ignore[union-attr]
    assert "60 x 40 pixels" in refused()


def test_aborted_before_and_after_it_has_grown(engine: VllmEngine) -> None:
    engine.add(GATEWAY, asked(1, 5))
    engine.add(GATEWAY, asked(2, 6))
    engine.add(GATEWAY, asked(2, 7))
    assert [d.error.code for d in engine.take_deltas()[GATEWAY] if d.error] == [ErrorCode.DUPLICATE_ID]
    engine.abort(GATEWAY, 1)
    deltas = finish(engine, [1, 2])
    assert [delta.finish_reason for delta in deltas[1]] == [FinishReason.ABORT]
    assert len(tokens(deltas[2])) == 8
    for i in range(6):
        engine.add(GATEWAY, asked(i, i, max_tokens=100))
    engine.step()
    engine.abort_all(GATEWAY)
    found = finish(engine, list(range(6)))
    assert {delta.finish_reason for each in found.values() for delta in each[-1:]} == {FinishReason.ABORT}


def test_the_engine_says_what_it_takes(served: tuple[VllmEngine, EngineInfo]) -> None:
    assert served[1].images == image_prompts.LIMITS
