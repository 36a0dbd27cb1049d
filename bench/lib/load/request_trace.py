"""What the client saw of one request; every latency metric is derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class RequestTrace:
    """Times are in seconds on one monotonic clock. Symbols are those of docs/benchmarks.md."""

    arrival: float  # a_r: when the request was due, which in an open loop may be before it could be sent
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0  # n_r, by the server's usage
    chunk_times: list[float] = field(default_factory=list)  # of chunks that carry tokens; the first is f_r
    completion: float = 0.0  # c_r: the end of the stream
    error: str = ""  # empty for a request that got all it asked for

    @property
    def ttft(self) -> float:
        """f_r - a_r."""
        return self.chunk_times[0] - self.arrival

    @property
    def e2e(self) -> float:
        """c_r - a_r."""
        return self.completion - self.arrival

    @property
    def itls(self) -> list[float]:
        """Gaps between successive chunks, as a reader sees them: a chunk may carry several tokens."""
        return [later - earlier for earlier, later in pairwise(self.chunk_times)]

    @property
    def tpot(self) -> float | None:
        """(last chunk - f_r) / (n_r - 1), indifferent to how tokens were chunked; None for a single token."""
        if self.num_output_tokens < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.num_output_tokens - 1)
