"""What a workload runs on: a model's shape, memory, a cost model and the scheduler's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from schedcore._core import Estimates, SchedulerConfig
from schedcore.latency.latency_profile import FIRST_MARGIN
from schedcore.simulation.cost_model import CostModel
from schedcore.simulation.model_shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEngine:
    """`options` are further fields of SchedulerConfig. Raises ValueError if the weights leave no room for a cache."""

    HOST_BYTES_PER_SECOND: ClassVar[float] = 24e9  # each way: PCIe 4.0 x16, as copies reach it

    model: ModelShape
    cost: CostModel
    memory_bytes: int  # of all devices together
    memory_utilization: float = 0.9  # share of it for weights and cache; the rest is for activations
    policy: str = "fcfs"
    max_model_len: int | None = None  # tokens; None: the model's
    block_size: int = 16
    layers_per_unit: int = 4
    enable_hidden_cache: bool = False  # refused where hidden states are no smaller than K and V
    host_memory_bytes: int = 0  # for preempted requests, see SchedulerConfig.preemption
    overlap_transfers: bool = True  # copies from and to the host beside the computation
    # True step times differ from the cost model's by its measured errors, and the scheduler learns as it does live.
    draw_errors: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.draw_errors and not self.cost.error_ratios:
            raise ValueError(f"{self.cost.name} does not say how far steps are from it: no errors can be drawn")
        if self.cache_bytes <= 0:
            needed, there = self.model.weight_bytes / 2**30, self.memory_utilization * self.memory_bytes / 2**30
            raise ValueError(f"{self.model.name} needs {needed:.1f} GiB for its weights, and there are {there:.1f} GiB")

    @property
    def cache_bytes(self) -> int:
        return int(self.memory_bytes * self.memory_utilization) - self.model.weight_bytes

    @property
    def num_units(self) -> int:
        return self.model.num_units(self.cache_bytes, self.block_size, self.layers_per_unit)

    @property
    def context_length(self) -> int:
        return self.max_model_len or self.model.max_model_len

    def with_policy(self, policy: str, **options: Any) -> SimulatedEngine:
        return replace(self, policy=policy, options={**self.options, **options})

    def scheduler_config(self, num_requests: int) -> SchedulerConfig:
        """For so many requests: all of them may wait, since refusing is the gateway's business.

        Raises ValueError naming the field, or all options if one of them does not exist or has another type.
        """
        settings: dict[str, Any] = {
            "num_units": self.num_units,
            "num_layers": self.model.num_layers,
            "layers_per_unit": self.layers_per_unit,
            "block_size": self.block_size,
            "max_model_len": self.context_length,
            "max_num_waiting": max(1, num_requests),
            "policy": self.policy,
            "refine_latency": self.draw_errors,
        }
        if self.enable_hidden_cache or self.options.get("preemption") == "restore":
            settings["hidden_units_per_group"] = self.model.hidden_units_per_group
        unit_bytes = self.model.unit_bytes(self.block_size, self.layers_per_unit)
        settings["num_host_units"] = self.host_memory_bytes // unit_bytes
        try:
            return SchedulerConfig(**{**settings, **self.options})
        except TypeError:
            options = ", ".join(f"{name}={value}" for name, value in self.options.items())
            raise ValueError(f"the scheduler has no such settings: {options}") from None

    def estimates(self) -> Estimates:
        """What the scheduler believes of the machine at first; unless errors are drawn it is true."""
        return Estimates(
            latency=self.cost.to_core(),
            costs=self.model.step_costs(),
            host_bytes_per_second=self.HOST_BYTES_PER_SECOND,
            unit_bytes=self.model.unit_bytes(self.block_size, self.layers_per_unit),
            **({"latency_margin": FIRST_MARGIN} if self.draw_errors else {}),
        )
