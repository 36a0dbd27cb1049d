"""A step waits for the device once: for its tokens. Where that is done is staging.py, and nothing else may."""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fakes.device_watch import DeviceWatch, torch_raises_on_waits
from fakes.engine_driver import GREEDY, make_engine, output_tokens, run
from fakes.form_driver import HIDDEN, KV, Choices, FormDriver
from fakes.kernel_device import KernelDevice
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan, Scheduler, SchedulerConfig
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, SamplingParams
from worker.batch.paged_pool import PagedPool
from worker.forms.form_forward import FormForward
from worker.forward.forward import Forward, LayerByLayer
from worker.forward.step_graphs import Rerun, StepGraphs
from worker.forward.step_inputs import StepInputs
from worker.forward.step_size import step_sizes
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.process.engine import Engine, EngineLimits
from worker.runner.executor import StepResult
from worker.runner.memory import allocate_pool, plan_memory
from worker.runner.model_runner import ModelRunner

ROOT = Path(__file__).resolve().parents[3]
DOOR = "worker/batch/staging.py"
HOT_PATH = [
    "worker/forms/form_decoder.py",
    "worker/forms/form_forward.py",
    "worker/forms/form_inputs.py",
    "worker/forward/forward.py",
    "worker/forms/layer_copies.py",
    "worker/runner/model_runner.py",
    "worker/models/decoder.py",
    "worker/ops/attention.py",
    "worker/ops/cache.py",
    "worker/ops/decoder_step.py",
    "worker/ops/native.py",
    "worker/ops/norm.py",
    "worker/ops/products.py",
    "worker/ops/sampling.py",
    "worker/forms/projection.py",
    "worker/sampling/prompt_logprobs.py",
    "worker/sampling/sampler.py",
    "worker/forms/step_forms.py",
    "worker/forward/recorded_inputs.py",
    "worker/forward/step_graphs.py",
    "worker/forward/step_inputs.py",
    "worker/tiers/tier_copies.py",
    "worker/models/layers/attention.py",
    "worker/models/layers/embedding.py",
    "worker/models/layers/linear.py",
    "worker/models/layers/mlp.py",
    "worker/models/layers/norm.py",
    "worker/sampling/adjust.py",
    "worker/sampling/logprobs.py",
]
WAITING = {"item", "cpu", "cuda", "nonzero", "masked_select", "argwhere"}
MAKING = {"tensor", "as_tensor"}  # of torch: from a list or number, by a copy that waits

KINDS = (
    GREEDY,
    SamplingParams(seed=1, temperature=0.8, top_p=0.9),
    SamplingParams(seed=2, top_k=8, repetition_penalty=1.2, num_logprobs=2),
    SamplingParams(temperature=0.0, presence_penalty=0.5, logit_bias={7: 2.0}, num_logprobs=0),
    SamplingParams(temperature=0.0, num_prompt_logprobs=1),
)


def waits_of(tree: ast.AST) -> Iterator[int]:
    """Line numbers."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        function, owner = node.func.attr, ast.unparse(node.func.value)
        is_moved = function == "to" and any("device" in ast.unparse(argument) for argument in node.args)
        if function in WAITING or (owner == "torch" and function in MAKING) or is_moved:
            yield node.lineno


def test_the_hot_path_has_no_call_that_waits() -> None:
    found = {name: list(waits_of(ast.parse((ROOT / name).read_text()))) for name in HOT_PATH}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize("line", ["x.item()", "x.to(y.device)", "torch.tensor([1])", "x.cpu()", "x[x.nonzero()]"])
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    assert list(waits_of(ast.parse(line)))


def test_the_watch_sees_what_waits() -> None:
    x = torch.arange(3)
    with DeviceWatch() as watch:
        x[x > 0], x[0].item(), x.to("cpu"), bool(x[0] == 0), torch.tensor([1])
    assert watch.waits == ["__getitem__", "item", "to", "__bool__", "tensor"]


def requests() -> list[EngineRequest]:
    rng = random.Random(4)
    lengths = (9, 3, 17, 5, 11)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
    return [EngineRequest(i, prompt, 4, kind) for i, (prompt, kind) in enumerate(zip(prompts, KINDS, strict=True))]


class WatchedRunner:
    """Runs plans, and keeps what waited."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.waits: set[str] = set()

    def add_request(self, request: EngineRequest) -> None:
        self._runner.add_request(request)

    def remove_request(self, request_id: int) -> None:
        self._runner.remove_request(request_id)

    def execute(self, plan: BatchPlan) -> StepResult:
        with DeviceWatch() as watch:
            result = self._runner.execute(plan)
        self.waits.update(watch.waits)
        return result


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecoderModel]:
    """With the CUDA kernels, emulated: what runs is what runs on CUDA, but for where tensors are."""
    folder = write_checkpoint(tmp_path, "llama-mha-tied")
    with KernelDevice("emulated").chosen(monkeypatch):
        yield load_model(folder, read_model_config(folder), dtype="float32")[0]


@pytest.mark.parametrize("choices", [Choices((HIDDEN,)), Choices((KV,), can_share=False)], ids=["hidden", "uncached"])
def test_steps_with_forms_do_not_wait(model: DecoderModel, choices: Choices) -> None:
    config = model.config
    data = torch.zeros(120, 2, 4, config.kv_size)
    table = torch.zeros(5, 2, 2, 10, dtype=torch.int32)
    pool = PagedPool(data, table, config.num_kv_heads, config.head_dim, num_workspace_units=20)
    forward: Forward = FormForward(LayerByLayer(model, pool, StepInputs(pool)), model, pool)
    runner = WatchedRunner(ModelRunner(model, pool, max_num_seqs=5, forward=forward))
    driver = FormDriver(runner, pool, choices, 1, 32)
    driver.run(requests())
    assert not runner.waits
    assert driver.met.hidden + driver.met.uncached > 20


def outputs(model: DecoderModel, has_graphs: bool) -> list[list[int]]:
    """Of an engine that never waits."""
    settings = {"max_num_seqs": 5, "max_num_batched_tokens": 32, "block_size": 4, "max_model_len": 40}
    config = EngineConfig(model="", layers_per_unit=2, cache_memory_bytes=1 << 20, **settings)
    memory = plan_memory(config, model.config, torch.float32, 0)
    pool = allocate_pool(memory, config, model.config, torch.float32, torch.device("cpu"), has_padding_row=True)
    forward: Forward = LayerByLayer(model, pool, StepInputs(pool))
    if has_graphs:
        forward = StepGraphs(model, pool, forward, Rerun(), step_sizes(24, 5))
    runner = WatchedRunner(ModelRunner(model, pool, max_num_seqs=5, forward=forward))
    core = Scheduler(SchedulerConfig(num_units=memory.num_units, num_layers=3, layers_per_unit=2, **settings))
    engine = Engine(core, runner, EngineLimits(VOCAB_SIZE, 40, 32, 100), time.monotonic)
    tokens = output_tokens(run(engine, requests()))
    assert not runner.waits
    if isinstance(forward, StepGraphs):
        assert forward.num_replayed > 1
    return tokens


def test_steps_of_every_kind_of_sampling_do_not_wait(model: DecoderModel) -> None:
    assert outputs(model, has_graphs=True) == outputs(model, has_graphs=False)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
def test_on_a_cuda_device_torch_sees_no_wait(tmp_path: Path, kind: SamplingParams) -> None:
    folder = write_checkpoint(tmp_path)
    engine = make_engine(folder, device="cuda", max_num_batched_tokens=16)
    rng = random.Random(4)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (30, 3, 17)]
    with torch_raises_on_waits():
        deltas = run(engine, [EngineRequest(i, prompt, 8, kind) for i, prompt in enumerate(prompts)])
    assert [len(of_request) for of_request in deltas.values()] == [8] * 3
