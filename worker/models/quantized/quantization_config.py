"""`quantization_config` of a checkpoint: which of the formats that people have, and whether we read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from worker.base.errors import CheckpointError, UnsupportedModelError

GPTQ, AWQ, COMPRESSED_TENSORS = "gptq", "awq", "compressed-tensors"
NUM_BITS = (4, 8)
_MAX_SHOWN = 60  # characters of a value in a message
_INSTEAD = "; a checkpoint in float32, bfloat16 or float16 can be served with --quantization"


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    """What the tensors do not say themselves."""

    method: str
    group_sizes: frozenset[int]  # that columns are in where they share scales, and not all of a row do
    zero_offset: int = 0  # what was taken off zero points before they were stored


def parse_quantization(given: object) -> CheckpointQuantization | None:
    """None where nothing is quantized. Raises UnsupportedModelError, naming what is not taken, or CheckpointError."""
    if not given:
        return None
    if not isinstance(given, dict):
        raise CheckpointError("config.json: quantization_config must be an object")
    method = given.get("quant_method")
    if not isinstance(method, str) or method not in _PARSERS:
        _refuse(f"quant_method {_shown(method)} is", f"supported: {', '.join(_PARSERS)}")
    return _PARSERS[method](given)


def _gptq(given: Mapping[str, Any]) -> CheckpointQuantization:
    _take_bits(given.get("bits"), GPTQ, NUM_BITS)
    form = given.get("checkpoint_format", "gptq")
    if given.get("is_marlin_format"):
        form = "marlin"
    if form not in ("gptq", "gptq_v2"):
        _refuse(f"checkpoint_format {_shown(form)} of gptq is", "supported: gptq, gptq_v2")
    exceptions = given.get("dynamic")
    others = [part for part in exceptions.values() if isinstance(part, dict)] if isinstance(exceptions, dict) else []
    return CheckpointQuantization(GPTQ, _group_sizes([given, *others]), zero_offset=0 if form == "gptq_v2" else 1)


def _awq(given: Mapping[str, Any]) -> CheckpointQuantization:
    _take_bits(given.get("bits", given.get("w_bit")), AWQ, (4,))
    version = given.get("version", "gemm")
    if not isinstance(version, str) or version.lower() != "gemm":
        _refuse(f"version {_shown(version)} of awq is", "supported: gemm")
    return CheckpointQuantization(AWQ, _group_sizes([given]))


def _compressed_tensors(given: Mapping[str, Any]) -> CheckpointQuantization:
    groups = given.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise CheckpointError("config.json: quantization_config.config_groups must be an object of objects")
    for name in ("sparsity_config", "transform_config"):
        part = given.get(name)
        if part and not (isinstance(part, dict) and part.get("format") == "dense"):
            _refuse(f"{name} of compressed-tensors is", "")
    for group in groups.values():
        _check_group(group, group.get("format") or given.get("format"))
    return CheckpointQuantization(COMPRESSED_TENSORS, _group_sizes([group["weights"] for group in groups.values()]))


def _check_group(group: Mapping[str, Any], form: object) -> None:
    forms = ("pack-quantized", "int-quantized", "naive-quantized")
    if form not in forms:
        _refuse(f"format {_shown(form)} of compressed-tensors is", f"supported: {', '.join(forms)}")
    weights = group.get("weights")
    if not isinstance(weights, dict):
        _refuse("compressed-tensors without rounded weights is", "")
    if weights.get("type", "int") != "int":
        _refuse(f"weights of type {_shown(weights.get('type'))} in compressed-tensors are", "supported: int")
    _take_bits(weights.get("num_bits"), COMPRESSED_TENSORS, NUM_BITS)
    strategies = ("tensor", "channel", "group")
    if weights.get("strategy") not in (None, *strategies):
        what = f"strategy {_shown(weights.get('strategy'))} of compressed-tensors is"
        _refuse(what, f"supported: {', '.join(strategies)}")


def _group_sizes(parts: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    sizes = (part.get("group_size", part.get("q_group_size")) for part in parts)
    return frozenset(size for size in sizes if isinstance(size, int) and size > 0)


def _take_bits(bits: object, method: str, taken: tuple[int, ...]) -> None:
    if isinstance(bits, bool) or bits not in taken:
        _refuse(f"{_shown(bits)} bits in {method} are", f"supported: {' and '.join(map(str, taken))}")


def _refuse(what: str, supported: str) -> NoReturn:
    hint = f"; {supported}" if supported else ""
    raise UnsupportedModelError(f"quantization_config: {what} not supported{hint}{_INSTEAD}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


_PARSERS: dict[str, Callable[[Mapping[str, Any]], CheckpointQuantization]] = {
    GPTQ: _gptq,
    AWQ: _awq,
    COMPRESSED_TENSORS: _compressed_tensors,
}
