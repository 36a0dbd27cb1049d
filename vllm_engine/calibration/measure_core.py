"""Measures what vLLM's steps cost, for the latency model: it computes steps of many shapes, and its own scheduler says
what was in each.

A scene is a number of requests that come at once and another that joins while they decode, so that it has prompts
alone, decodes alone and both together. Scenes are repeated in another order each time: what disturbs the machine for
some seconds touches many shapes a little, and medians do not see it.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from schedcore._core import algorithms
from schedcore.latency.step_measurements import StepMeasurements, measured_step
from vllm_engine.compat import vllm_version

Progress = Callable[[int, int], None]  # scenes so far, of how many

MIN_ROUNDS, MAX_ROUNDS = 3, 40  # the first one warms, and does not count
NUM_DECODES = 4  # steps, before and after somebody joins
LARGEST = 64  # requests of a scene


class Scene(NamedTuple):
    num_requests: int
    num_tokens: int  # of each prompt
    num_joining: int  # of the prompt that comes later


def scenes(max_num_seqs: int, max_num_tokens: int, max_model_len: int, num_cache_tokens: int) -> list[Scene]:
    """What the limits allow. Raises ValueError if that is too little to fit."""
    longest = max_model_len - 4 * NUM_DECODES
    wanted = [
        Scene(n, length, joining)
        for n in (1, 2, 4, 8, 16, 32, LARGEST)
        for length in (16, 128, 512, 1500)
        for joining in (max_num_tokens // 8, max_num_tokens // 2, max_num_tokens)
    ]
    found = [
        scene
        for scene in wanted
        if scene.num_requests < max_num_seqs
        and max(scene.num_tokens, scene.num_joining) <= longest
        and scene.num_joining > 0
        and 2 * (scene.num_requests * (scene.num_tokens + 64) + scene.num_joining) <= num_cache_tokens
        and scene.num_requests * scene.num_tokens <= 8 * max_num_tokens
    ]
    if len(found) < 4:
        raise ValueError("the engine's limits allow too few different steps for a calibration")
    return found


def measure_core(core: Any, seconds: float, progress: Progress = lambda done, total: None) -> StepMeasurements:
    """Of an idle vllm EngineCore that nobody steers. For about `seconds`, but at least MIN_ROUNDS rounds."""
    config, scheduler = core.vllm_config, core.scheduler
    limits = (
        scheduler.max_num_running_reqs,
        scheduler.max_num_scheduled_tokens,
        scheduler.max_model_len,
        scheduler.num_blocks * scheduler.block_size,
    )
    chosen = scenes(*limits)
    observer = _Observer(core, random.Random(0), config.model_config.get_vocab_size())
    features: dict[tuple[Scene, int], algorithms.BatchFeatures] = {}
    times: defaultdict[tuple[Scene, int], list[float]] = defaultdict(list)
    began, done = time.monotonic(), 0
    for num_round in range(MAX_ROUNDS):
        for scene in observer.draw.sample(chosen, len(chosen)):
            for place, step in enumerate(observer.play(scene)):
                features[scene, place] = step.features
                if num_round:
                    times[scene, place].append(step.seconds)
            done += 1
            progress(done, max(done, MIN_ROUNDS * len(chosen)))
        if num_round + 1 >= MIN_ROUNDS and time.monotonic() - began > seconds:
            break
    progress(done, done)
    steps = [measured_step(features[key], found) for key, found in times.items()]
    return StepMeasurements(
        model=config.model_config.served_model_name or config.model_config.model,
        device=f"{config.device_config.device_type}, vLLM {vllm_version()}",
        steps=steps,
        hidden_token=0.0,
        source=f"hocket calibrate, {time.strftime('%Y-%m-%d', time.gmtime())}: {len(steps)} different steps of vLLM's, "
        f"{str(config.model_config.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads, medians",
        limits=f"up to {LARGEST + 1} sequences, {limits[1]} tokens in a step, contexts up to 1,500; sampling at "
        "temperature 1 without penalties or log-probabilities",
    )


class _Step(NamedTuple):
    features: algorithms.BatchFeatures
    seconds: float


class _Observer:
    def __init__(self, core: Any, draw: random.Random, vocab_size: int) -> None:
        self.draw, self._core, self._vocab_size = draw, core, vocab_size
        self._last = 0
        self._planned: list[Any] = []  # what vLLM's scheduler has put into the steps since the last look
        schedule = core.scheduler.schedule

        def scheduling(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._planned.append(output)
            return output

        core.scheduler.schedule = scheduling

    def play(self, scene: Scene) -> Iterator[_Step]:
        names = [self._add(scene.num_tokens) for _ in range(scene.num_requests)]
        yield from self._run_until_decoding(NUM_DECODES)
        names.append(self._add(scene.num_joining))
        yield from self._run_until_decoding(NUM_DECODES)
        self._core.abort_requests(names)
        while self._core.scheduler.has_requests():
            self._step()

    def _run_until_decoding(self, num_decodes: int) -> Iterator[_Step]:
        while num_decodes > 0:
            step = self._step()
            if step is None:
                continue
            yield step
            num_decodes -= step.features.num_chunks == 0

    def _step(self) -> _Step | None:
        """None: nothing was computed."""
        self._planned.clear()
        start = time.perf_counter()
        _, is_executed = self._core.step_fn()
        self._core.post_step(is_executed)
        seconds = time.perf_counter() - start
        planned = [output for output in self._planned if output.total_num_scheduled_tokens]
        return _Step(self._features(planned[0]), seconds) if is_executed and planned else None

    def _features(self, output: Any) -> algorithms.BatchFeatures:
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        batch = algorithms.LatencyBatch(self._core.scheduler.max_model_len)
        for name, num_tokens in output.num_scheduled_tokens.items():
            if num_tokens == 1:
                batch.add_decode(computed[name] + 1)
            else:
                batch.add_chunk(computed[name], num_tokens)
        return batch.features

    def _add(self, num_tokens: int) -> str:
        """Of tokens that nobody has cached."""
        self._last += 1
        name = f"measured-{self._last}"
        prompt = [self.draw.randrange(self._vocab_size) for _ in range(num_tokens)]
        params = SamplingParams(max_tokens=1 << 20, temperature=1.0, ignore_eos=True, detokenize=False)
        request = EngineCoreRequest(name, prompt, None, params, None, time.time(), None, None, None)
        self._core.add_request(*self._core.preprocess_add_request(request))
        return name
