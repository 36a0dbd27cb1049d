"""How a family of models marks its thinking; values, read by thinking_reader.py and thinking.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    name: str
    opening: str
    closing: str
    is_implicit: bool = False  # an answer begins with thinking though nobody has opened it


THINK = ReasoningFormat("qwen3", "<think>", "</think>")
DEEPSEEK_R1 = ReasoningFormat("deepseek_r1", "<think>", "</think>", is_implicit=True)
MISTRAL = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
SEED_OSS = ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>")

FORMATS = {  # by the names of vLLM's parsers
    **{known.name: known for known in (THINK, DEEPSEEK_R1, MISTRAL, SEED_OSS)},
    **dict.fromkeys(("deepseek_v3", "glm45", "holo2", "olmo3"), THINK),
    "step3": DEEPSEEK_R1,
}


def format_of(template: str) -> ReasoningFormat | None:
    """Of a chat template: by the marks that it writes, or cuts off earlier answers. None: the model does not think."""
    return next((known for known in (THINK, MISTRAL, SEED_OSS) if known.closing in template), None)


def named(parser: str, template: str) -> ReasoningFormat | None:
    """parser: a name in FORMATS, none, or auto: as the template says."""
    return format_of(template) if parser == "auto" else FORMATS.get(parser)
