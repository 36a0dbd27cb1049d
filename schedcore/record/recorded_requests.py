"""What a decision record holds beside decisions: requests with their answers and times, and how long steps took."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from schedcore._core import StepOutput, algorithms
from schedcore.api.types import RequestClass
from schedcore.latency.calibration import Calibration, StepSample, calibrate
from schedcore.latency.latency_profile import core_model
from schedcore.record.decision_record import AddCall, Call, CommitCall, RecordError, RecordReader, ScheduleCall
from schedcore.record.recipe import Recipe
from schedcore.record.recording_scheduler import int32_array
from schedcore.record.replay import Progress, Replay, replay

Int32 = npt.NDArray[np.int32]

MAX_SAMPLES = 4000  # of the steps that the latency model is fitted to, evenly spread over the record


@dataclass(slots=True)
class RecordedRequest:
    """One that was accepted."""

    prompt: Int32
    options: dict[str, Any]  # of add_request
    tokens: list[int] = field(default_factory=list)  # the answer, as far as it went
    times_s: list[float] = field(default_factory=list)  # when each token was there
    num_cached_tokens: int = 0

    @property
    def arrival_s(self) -> float:
        return float(self.options.get("arrival_time", 0.0))

    @property
    def request_class(self) -> RequestClass:
        return RequestClass(self.options.get("request_class", 0))

    def target_s(self, name: Literal["ttft", "itl", "tpot"]) -> float:
        """Infinite without one, as every target is that was added after the record was written."""
        target = self.options.get(f"{name}_target")
        return float("inf") if target is None else float(target)


class Recorded:
    """What a record holds beside its decisions. Fed by the replay, which has the plans."""

    def __init__(self, scheduler: Recipe) -> None:
        self.scheduler = scheduler
        self.start_s: float | None = None  # of the first schedule(), which may have had nothing to do
        self.requests: list[RecordedRequest] = []
        self.samples: list[StepSample] = []
        self._live: dict[int, RecordedRequest] = {}
        self._open: tuple[float, algorithms.BatchFeatures] | None = None

    def observe(self, call: Call, returned: Any) -> None:
        if self.start_s is None and isinstance(call, ScheduleCall):
            self.start_s = call.now
        match call:
            case AddCall(result="OK"):
                self._live[call.request_id] = RecordedRequest(int32_array(call.prompt_token_ids), call.options)
                self.requests.append(self._live[call.request_id])
            case ScheduleCall(error=None) if returned:
                self._open = call.now, algorithms.plan_features(returned)
            case CommitCall(error=None):
                if self._open is not None and call.now > self._open[0]:
                    self.samples.append(StepSample(self._open[1], call.now - self._open[0]))
                take_output(returned, self._live, call.now)

    def answered(self) -> list[RecordedRequest]:
        """Without those that were aborted before their first token, in order of arrival."""
        return sorted((r for r in self.requests if r.tokens), key=lambda r: r.arrival_s)

    def fit(self) -> Calibration:
        """Raises ValueError if there are too few steps."""
        spread = np.linspace(0, len(self.samples) - 1, min(MAX_SAMPLES, len(self.samples))).astype(int)
        return calibrate([self.samples[i] for i in spread], "corrected")

    def explained_ratio(self, fitted: Calibration) -> float:
        """Fitted over recorded step time, all steps together. What is missing came from elsewhere: a busy machine."""
        model = core_model(fitted.form, fitted.coefficients)
        return sum(model.predict(s.features) for s in self.samples) / sum(s.seconds for s in self.samples)


def take_output(output: StepOutput, requests: dict[int, RecordedRequest], now: float) -> None:
    columns = output.request_ids, output.token_ids, output.num_cached_tokens
    for request_id, token, num_cached in zip(*(column.tolist() for column in columns), strict=True):
        request = requests[request_id]
        request.tokens.append(token)
        request.times_s.append(now)
        request.num_cached_tokens = num_cached


def read_recorded(path: Path, on_progress: Progress | None = None) -> tuple[Recorded, Replay]:
    """The requests are complete only if the replay is identical. Raises RecordError, OSError."""
    with RecordReader(path) as reader:
        recorded = Recorded(reader.header.scheduler)
    if recorded.scheduler.kind == "Advisor":
        raise RecordError(
            f"{path} is of an engine that keeps its own memory: its decisions can be compared, and not served again"
        )
    return recorded, replay(path, on_progress, recorded.observe)
