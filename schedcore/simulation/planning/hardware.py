"""What an engine may run on: a kind of GPU, how many of them, and their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schedcore.simulation.cost_model import measured_devices, read_profile

GIB = 2**30

# Sizes that are sold, smallest first. The device names are those of the shipped profiles.
GPU_MEMORY_GIB = {"A100": (40, 80), "H100": (80,)}


@dataclass(frozen=True, slots=True)
class Hardware:
    """Of one engine."""

    gpu: str  # a device of the shipped profiles, or a profile's file: see find_cost()
    num_gpus: int  # tensor parallel
    gpu_memory_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.num_gpus * self.gpu_memory_bytes

    @property
    def name(self) -> str:
        count = "" if self.num_gpus == 1 else f"{self.num_gpus} x "
        return f"{count}{Path(self.gpu).name} {self.gpu_memory_bytes / GIB:g}G"


def find_hardware(gpu: str = "all", memory_bytes: Sequence[int] = ()) -> list[Hardware]:
    """Smallest first: by number of GPUs, device, memory.

    gpu: a device, all that the shipped latency profiles cover, or one profile's JSON file. memory_bytes: of each GPU,
    instead of the sizes that are sold. Raises ValueError for an unknown device or memory, OSError.
    """
    if gpu.endswith(".json"):
        if not memory_bytes:
            raise ValueError(f"{gpu} does not say how much memory a GPU has; say it")
        measured = [(gpu, read_profile(Path(gpu)).num_devices)]
    else:
        known = measured_devices()
        measured = [(device, n) for device, n in known if gpu.lower() in (device.lower(), "all")]
        if not measured:
            devices = ", ".join(dict.fromkeys(device for device, _ in known))
            raise ValueError(f"there is no latency profile for {gpu}; known: {devices}")
    found = [
        Hardware(device, num_gpus, size)
        for device, num_gpus in measured
        for size in memory_bytes or [GIB * gib for gib in GPU_MEMORY_GIB[device]]
    ]
    return sorted(found, key=lambda hardware: (hardware.num_gpus, hardware.gpu, hardware.gpu_memory_bytes))
