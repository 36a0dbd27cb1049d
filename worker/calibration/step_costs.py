"""What the b/r solver of policy ellm is told of the machine: measured step times.

It (cpp/core/solvers/partial_cache_solver.h) thinks in FLOPs and bytes over their rates. Here both are seconds, at a
rate of one per second: what a token's matrix work takes, what reading the weights takes, and what a token of context
takes a decode.
"""

from __future__ import annotations

from schedcore.latency.latency_profile import LatencyCoefficients
from schedcore.record.recipe import Recipe

_LEAST = 1e-12  # seconds: the solver wants something


def step_costs(coefficients: LatencyCoefficients, num_layers: int) -> Recipe:
    """num_layers: the workspace of recomputed tokens is one layer deep."""
    k = coefficients
    context = max(k.decode_context, _LEAST)
    return Recipe(
        "StepCosts",
        {
            "form": "roofline",
            "flops_per_token": max(k.prefill_token, _LEAST),
            "flops_per_pair": max(2 * k.prefill_pair, _LEAST),  # (c + n)^2 - c^2 counts every causal pair twice
            "flops_per_logit": max(k.decode_seq - k.prefill_token, _LEAST),
            "flops_per_second": 1.0,
            "weight_bytes": max(k.step_base + k.decode_base, _LEAST),
            "head_bytes": _LEAST,
            "kv_bytes_per_token": context,
            "workspace_bytes_per_token": context / num_layers,
            "bytes_per_second": 1.0,
        },
    )
