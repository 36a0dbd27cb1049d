"""What a server's `/metrics` says of its queue and cache, by vLLM's names."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the newer name first
_CACHE = "vllm:cache_config_info"
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')
_LINE = re.compile(r"^(vllm:\w+)(\{.*\})? (\S+)(?: \d+)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Gauges:
    """Of all its engines, where it has several."""

    num_running: int
    num_waiting: int
    cache_usage: float  # of the fullest, 1 is all
    num_blocks: int = 0  # 0: not said


def read_gauges(text: str) -> Gauges | None:
    """None: it does not say them, as with --disable-log-stats."""
    found: dict[str, list[float]] = {}
    num_blocks = 0
    for name, labels, value in _LINE.findall(text):
        if name == _CACHE and (match := _BLOCKS.search(labels)):
            num_blocks += int(match[1])
        elif name in (_RUNNING, _WAITING, *_USAGE):
            found.setdefault(name, []).append(_number(value))
    usage = next((found[name] for name in _USAGE if name in found), None)
    if _RUNNING not in found or _WAITING not in found or usage is None:
        return None
    return Gauges(int(sum(found[_RUNNING])), int(sum(found[_WAITING])), max(usage), num_blocks)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 <= number < 1e12 else 0.0
