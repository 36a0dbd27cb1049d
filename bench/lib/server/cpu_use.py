"""Who used the CPU while a cell was measured; what is neither server nor client is noise."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from bench.lib.server.server_process import ServerProcess


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Seconds; `busy` is what all cores together could not give to idling, time stolen by the hypervisor included."""

    wall: float
    busy: float
    server: float
    client: float

    def since(self, earlier: CpuUse) -> CpuUse:
        return CpuUse(
            self.wall - earlier.wall,
            self.busy - earlier.busy,
            self.server - earlier.server,
            self.client - earlier.client,
        )

    @property
    def noise_ratio(self) -> float:
        """In cores: 0.5 means that others used half a core on average."""
        return max(0.0, self.busy - self.server - self.client) / self.wall


def read_cpu_use(server: ServerProcess) -> CpuUse:
    times = psutil.cpu_times()
    # guest time is part of user time already
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return CpuUse(time.perf_counter(), sum(times) - idle, server.cpu_seconds(), time.process_time())
