"""docs/architecture.md traces one chat request: it names files in the order in which they are first called."""

from __future__ import annotations

from pathlib import Path

from fakes.engine_driver import make_engine
from fakes.first_calls import FirstCalls, first_called, named_in_the_trace
from fakes.tiny_checkpoints import write_checkpoint
from schedcore.api.types import EngineRequest, SamplingParams

LEFT_OUT = {
    "worker/speculation/model_guesser.py",  # a small model, once everybody decodes
    "worker/forms/form_inputs.py",  # cache forms
    "worker/batch/staging.py",  # devices
    "worker/models/",  # where no native decoder runs the model
    "worker/models/layers/",
    "worker/sampling/sampler.py",  # asked before the step, too: what goes to the device with it
    "worker/ops/",  # asked by the sampler then
}


def test_the_worker_is_called_in_the_order_of_the_trace(tmp_path: Path) -> None:
    engine = make_engine(write_checkpoint(tmp_path / "model"))
    engine.add("gateway", EngineRequest(1, [1, 2, 3], max_tokens=3, sampling=SamplingParams(temperature=1.0, seed=1)))
    with FirstCalls() as calls:
        while engine.has_work():
            engine.step()
    named = [name for name in named_in_the_trace("worker") if name not in LEFT_OUT]
    assert first_called(named, calls.of("worker")) == named
