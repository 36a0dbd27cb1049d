"""The advisor of one scheduler of vLLM's: our configuration in its measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedcore._core import Advisor
from schedcore.record.recipe import Recipe
from schedcore.record.recording_advisor import RecordingAdvisor


def make_advisor(
    scheduler: Any, settings: Mapping[str, Any], estimates: Recipe, decision_record: Path | None = None
) -> Advisor:
    """settings: fields of SchedulerConfig by name, but for those of memory and limits, which are vLLM's.

    Raises ValueError or TypeError for a setting that is wrong or unknown, ValueError for a record that cannot be
    written.
    """
    limits = {
        "num_layers": 1,  # a block is one of vLLM's per group of layers: two units of ours
        "layers_per_unit": 1,
        "num_units": 2 * scheduler.num_blocks,
        "block_size": scheduler.block_size,
        "max_num_seqs": scheduler.max_num_running_reqs,
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
        "max_model_len": scheduler.max_model_len,
        "enable_prefix_caching": scheduler.cache_config.enable_prefix_caching,
        "enable_chunked_prefill": scheduler.scheduler_config.enable_chunked_prefill,
        "refine_latency": True,
    }
    wrong = sorted(limits.keys() & settings.keys())
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: vLLM says that, not the advisor's settings")
    config = Recipe("SchedulerConfig", {"policy": "hocket", **settings, **limits})
    recipe = Recipe("Advisor", {"config": config, "estimates": estimates})
    return Advisor(**recipe.build_arguments()) if decision_record is None else RecordingAdvisor(recipe, decision_record)
