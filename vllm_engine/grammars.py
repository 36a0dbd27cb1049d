"""Grammars inside vLLM's engine: its scheduler and masks, our reading of a grammar (schedcore/grammar/source.py).

vLLM's frontend chooses among engines of grammars and checks what each can do; this server's gateway has checked the
grammar by then, and llguidance is the engine on both sides, so a grammar means the same on every engine of ours.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar

from schedcore.api.types import Grammar, GrammarKind
from schedcore.grammar.problems import readable
from schedcore.grammar.source import limits, llguidance_source

_PATTERN = re.compile(r'"whitespace_pattern":\s*"(?:[^"\\]|\\.)*"')
_Backend: Any = object if TYPE_CHECKING else GuidanceBackend


class GrammarBackend(_Backend):
    """Takes llguidance's own form, whatever kind of grammar it was made of."""

    def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: Any = None) -> Any:
        """Raises ValueError, which ends this request alone."""
        matcher = LLMatcher(self.ll_tokenizer, grammar_spec, log_level=0, limits=limits())
        if error := matcher.get_error():
            raise ValueError(f"the grammar cannot be followed: {readable(error)}")
        return GuidanceGrammar(ll_matcher=matcher, ll_tokenizer=self.ll_tokenizer, vocab_size=self.vocab_size)


def bounded(source: str, version: str = importlib.metadata.version("llguidance")) -> str:
    """An llguidance before 1.9, as vLLM 0.32 wants it, repeats the pattern of whitespace, and a model may babble on in
    it: JSON without whitespace is what it gets instead."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return source if (major, minor) >= (1, 9) else _PATTERN.sub('"whitespace_flexible":false', source)


def install_grammars(core: Any) -> bool:
    """In a vllm EngineCore, before its first request. False: it has no tokenizer, or one that llguidance cannot use."""
    manager, model = core.structured_output_manager, core.vllm_config.model_config
    if model.skip_tokenizer_init or not GuidanceBackend.is_tokenizer_supported(manager.tokenizer):
        return False
    manager.backend = GrammarBackend(core.vllm_config, tokenizer=manager.tokenizer, vocab_size=model.get_vocab_size())
    return True


def structured_outputs(grammar: Grammar | None) -> StructuredOutputsParams | None:
    """Raises ValueError for a text that is not what its kind says."""
    if grammar is None:
        return None
    if grammar.kind is GrammarKind.LARK:  # which may hold JSON schemas
        grammar = msgspec.structs.replace(grammar, text=bounded(grammar.text))
    params = StructuredOutputsParams(grammar=bounded(llguidance_source(grammar)))
    params._backend = "guidance"  # which vLLM's frontend would say
    return params
