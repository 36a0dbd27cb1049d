"""A grammar as llguidance reads it, and what is wrong with one: for the gateway's early 400 and for the engine.

llguidance is imported when the first grammar comes: whoever asks for none does not pay for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from schedcore.api.types import Grammar, GrammarKind
from schedcore.grammar.json_schema import followable
from schedcore.grammar.problems import readable

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_CHARACTERS = 131_072  # of a grammar: reading one takes about a second per 100,000 at worst
MAX_SCHEMA_CHARACTERS = 4 * MAX_CHARACTERS  # of a JSON schema with its annotations
WHITESPACE = r" |\r?\n( {0,16}|\t{0,8})"  # between JSON's tokens: a space or an indented line, no room to babble on


def json_options(*, has_space: bool) -> Any:
    """llguidance's, for a JSON schema. Without space every place between two tokens has one way to go on."""
    space: dict[str, Any] = {"whitespace_pattern": WHITESPACE} if has_space else {"whitespace_flexible": False}
    return {**space, "lenient": False}


def llguidance_source(grammar: Grammar) -> str:
    """Raises ValueError if the text is not what its kind says."""
    from llguidance import LLMatcher  # here, for its 10 MB

    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = followable(grammar.text)
            if len(schema) > MAX_CHARACTERS:
                raise ValueError(
                    f"without annotations it has {len(schema)} characters; at most {MAX_CHARACTERS} are taken"
                )
            source = LLMatcher.grammar_from_json_schema(schema, overrides=json_options(has_space=grammar.has_space))
        case GrammarKind.REGEX:
            source = LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            source = LLMatcher.grammar_from_lark(_alternatives(json.loads(grammar.text)))
        case GrammarKind.EBNF:
            source = LLMatcher.grammar_from_lark(_from_ebnf(grammar.text))
        case GrammarKind.LARK:
            source = LLMatcher.grammar_from_lark(grammar.text)
    return _behind(grammar.before, str(source)) if grammar.before else str(source)


def limits() -> LLParserLimits:
    """Of one grammar's memory, and of the time that a mask may take (about 15 ms)."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000, verbose_errors=False)


def find_problem(grammar: Grammar) -> str | None:
    """What keeps it from being compiled, in a line that names the keyword; None: nothing. Takes milliseconds, or a
    second for the worst that is not too long; lets other threads run meanwhile.
    """
    most = MAX_SCHEMA_CHARACTERS if grammar.kind is GrammarKind.JSON_SCHEMA else MAX_CHARACTERS
    if len(grammar.text) > most:
        return f"it has {len(grammar.text)} characters; at most {most} are taken"
    from llguidance import LLMatcher

    try:
        source = llguidance_source(grammar)
    except (ValueError, RecursionError) as error:
        return str(error)
    is_error, messages = LLMatcher.validate_grammar_with_warnings(source, None, limits=limits())
    return readable(messages[0]) if is_error else None


def _behind(before: str, source: str) -> str:
    """The grammar as a part of one that begins with the rule `first`."""
    try:
        answer = json.loads(source)["grammars"][0]
    except ValueError:  # it is Lark, which is no JSON
        answer = {"lark_grammar": source}
    whole = {"lark_grammar": f"%llguidance {{}}\nstart: first @answer\n{before}"}
    return json.dumps({"grammars": [whole, answer | {"name": "answer"}]})


def _from_ebnf(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # its reader raises plain Exception and what its mistakes raise
        raise ValueError(f"the rules cannot be read: {error}") from None


def _alternatives(choices: list[Any]) -> str:
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
