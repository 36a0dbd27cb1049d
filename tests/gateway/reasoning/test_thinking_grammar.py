"""Under any kind of grammar a model thinks as it likes first, and then follows it: by the engine of grammars itself."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken

from fakes.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, write_byte_checkpoint
from gateway.model.checkpoint import Checkpoint
from gateway.model.tokenize import Tokenizer
from gateway.protocol.output.output_format import AskedGrammar, choice_grammar, json_grammar, rules_grammar
from gateway.protocol.output.tools import Function
from gateway.reasoning.reasoning_format import THINK
from gateway.reasoning.thinking import Thinking
from gateway.reasoning.thinking_reader import Start
from gateway.tools.calls_grammar import calls_grammar
from gateway.tools.tool_format import JSON
from schedcore.api.types import EngineRequest, Grammar, GrammarKind
from schedcore.grammar.source import find_problem
from worker.grammars.grammars import Grammars
from worker.grammars.matcher import Matcher

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GRAMMARS = {
    "schema": (
        json_grammar(SCHEMA),
        '{"a":1}',
    ),
    "regex": (Grammar(GrammarKind.REGEX, "[a/b]+"), "a/b"),
    "choice": (choice_grammar(["yes", "no"]), "yes"),
    "ebnf": (rules_grammar('root ::= "x" item\nitem ::= "y" | "z"'), "xz"),
    "lark": (rules_grammar('start: "x" item\nitem: "y" | "z"'), "xy"),
    "calls": (calls_grammar(JSON, [Function("now")], False, {}), '[{"name": "now", "arguments": {}}]'),
}


@pytest.fixture(scope="module", params=["text", "token", "special"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Grammars, Tokenizer]:
    """The marks of thinking: bytes, or tokens of their own."""
    folder = write_byte_checkpoint(tmp_path_factory.mktemp("marks"))
    tokenizer = byte_tokenizer()
    if request.param != "text":
        is_special = request.param == "special"
        tokenizer.add_tokens([AddedToken(m, special=is_special, normalized=False) for m in ("<think>", "</think>")])
        tokenizer.save(str(folder / "tokenizer.json"))
    return Grammars(folder, VOCAB_SIZE + 2), Tokenizer.load(Checkpoint.read(folder))


def thinking(tokenizer: Tokenizer, start: Start) -> Thinking:
    found = {mark: tokenizer.marker_id(mark) for mark in (THINK.opening, THINK.closing)}
    return Thinking(THINK, start, {mark: i for mark, i in found.items() if i is not None}, False)


def follow(grammars: Grammars, grammar: Grammar) -> Matcher:
    grammars.begin(EngineRequest(1, [1], 1, stop_token_ids=[END], grammar=grammar))
    while not (compiled := grammars.take_compiled()):
        grammars.wait()
    assert compiled == [(1, None)]
    return grammars.matcher(1)


def allows(matcher: Matcher, token: int) -> bool:
    return bool(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")[token])


def say(matcher: Matcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether it may be said, to its end."""
    for token in [*tokenizer._encode([text], False)[0], END]:
        if not allows(matcher, token):
            return False
        matcher.advance(token)
        matcher.find_mask()
        assert matcher.problem is None
    return True


@pytest.mark.parametrize("name", GRAMMARS)
def test_thinking_is_free_and_the_answer_is_not(served: tuple[Grammars, Tokenizer], name: str) -> None:
    grammars, tokenizer = served
    grammar, answer = GRAMMARS[name]

    def may_say(start: Start, text: str) -> bool:
        asked = thinking(tokenizer, start).grammar(AskedGrammar(grammar, "x"))
        assert asked is not None
        assert find_problem(asked.grammar) is None
        return say(follow(grammars, asked.grammar), tokenizer, text)

    thought = 'So {"b": é} < </thin\n\n'
    assert may_say(Start.OPEN, f"{thought}</think>\n\n{answer}")
    assert may_say(Start.OPEN, f"</think>{answer}")
    assert not may_say(Start.OPEN, thought)  # it ends with an answer
    assert not may_say(Start.OPEN, f"{thought}</think>\n\nWell, {answer}")
    assert may_say(Start.MAY_OPEN, f"<think>{thought}</think>{answer}")
    assert may_say(Start.MAY_OPEN, answer)
    assert not may_say(Start.MAY_OPEN, f"<think>{answer}")
    assert may_say(Start.CLOSED, answer)
    assert not may_say(Start.CLOSED, f"<think>{thought}</think>{answer}")
