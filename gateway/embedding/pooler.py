"""How a model's hidden states make vectors: as its sentence-transformers files say, or `--pooler-config`.

Without either: the last token's state, made length 1, as in vLLM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import Pooling, PoolingKind

_KINDS = {"lasttoken": PoolingKind.LAST, "mean": PoolingKind.MEAN, "cls": PoolingKind.CLS}  # as files name them
_FLAGS = {f"pooling_mode_{name}": name for name in ("lasttoken", "mean_tokens", "cls_token")}
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Pooler:
    kind: PoolingKind = PoolingKind.LAST
    is_normalized: bool = True
    hidden_size: int | None = None  # None: not known
    is_matryoshka: bool = False  # its vectors may be shortened
    matryoshka_dimensions: tuple[int, ...] = ()  # to these; empty: to any
    problem: str | None = None  # why it makes none here

    @classmethod
    def read(cls, folder: Path, settings: str | None = None) -> Pooler:
        """settings: of --pooler-config. Raises ValueError where they cannot be read."""
        try:
            found = _of_files(folder)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            found = cls(problem=f"its sentence-transformers files cannot be read: {error}")
        return found if settings is None else _with_settings(found, settings)

    def pooling(self, num_dimensions: int | None, is_normalized: bool | None) -> Pooling:
        """None: as the model has it. Raises InvalidRequestError."""
        if self.problem is not None:
            raise InvalidRequestError(
                f"This model makes no embeddings here: {self.problem}.", param="model", code="unsupported"
            )
        if num_dimensions is not None:
            self._check_dimensions(num_dimensions)
        return Pooling(self.kind, self.is_normalized if is_normalized is None else is_normalized, num_dimensions)

    def _check_dimensions(self, number: int) -> None:
        if self.hidden_size is not None and number == self.hidden_size:
            return
        if not self.is_matryoshka:
            raise InvalidRequestError(
                "'dimensions' is not supported: this model was not made for shorter vectors (its config.json has no "
                "is_matryoshka).",
                param="dimensions",
                code="unsupported",
            )
        allowed = self.matryoshka_dimensions
        if allowed and number not in allowed:
            named = ", ".join(map(str, allowed))
            raise InvalidRequestError(f"'dimensions' must be one of {named}.", param="dimensions")
        if self.hidden_size is not None and number > self.hidden_size:
            raise InvalidRequestError(f"'dimensions' must be at most {self.hidden_size}.", param="dimensions")


def _of_files(folder: Path) -> Pooler:
    config = _read(folder / "config.json", {})
    dimensions = tuple(int(number) for number in config.get("matryoshka_dimensions") or ())
    pooler = Pooler(
        hidden_size=config.get("word_embed_proj_dim") or config.get("hidden_size"),
        is_matryoshka=bool(dimensions) or bool(config.get("is_matryoshka")),
        matryoshka_dimensions=dimensions,
    )
    modules = _read(folder / "modules.json", [])
    if not modules:
        return pooler
    kinds = [str(module.get("type")).rsplit(".", 1)[-1] for module in modules]
    if unknown := [kind for kind in kinds if kind not in _KNOWN_MODULES]:
        return replace(pooler, problem=f"modules.json has a module {unknown[0]}, which is not supported")
    pooler = replace(pooler, is_normalized="Normalize" in kinds)
    paths = [str(module.get("path")) for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"]
    return _pooled(pooler, _read(folder / paths[0] / "config.json", {})) if paths else pooler


def _pooled(pooler: Pooler, config: dict[str, Any]) -> Pooler:
    """With what a Pooling module says."""
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else [name for name, is_on in config.items() if is_on is True]
    named = [_FLAGS.get(name, name).removesuffix("_tokens").removesuffix("_token") for name in modes]
    named = [name for name in named if name.startswith("pooling_mode") or name in _KINDS or isinstance(mode, str)]
    if len(named) != 1 or named[0] not in _KINDS:
        return replace(pooler, problem=f"its pooling is {' and '.join(named) or 'none'}; last, mean and cls are known")
    return replace(pooler, kind=_KINDS[named[0]])


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's names, older and newer ones."""

    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    normalize: bool | None = None
    use_activation: bool | None = None


def _with_settings(pooler: Pooler, text: str) -> Pooler:
    try:
        settings = msgspec.json.decode(text, type=_Settings)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f'--pooler-config is an object such as {{"pooling_type": "MEAN"}}: {error}') from None
    kind = settings.seq_pooling_type or settings.pooling_type
    if kind is not None:
        if kind.lower() not in tuple(PoolingKind):
            raise ValueError(f"--pooler-config: pooling_type is LAST, MEAN or CLS, not {kind!r}")
        pooler = replace(pooler, kind=PoolingKind(kind.lower()), problem=None)
    is_normalized = settings.normalize if settings.use_activation is None else settings.use_activation
    return pooler if is_normalized is None else replace(pooler, is_normalized=is_normalized)


def _read(path: Path, default: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default
