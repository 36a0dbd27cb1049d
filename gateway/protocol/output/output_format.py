"""What a request says of its answer's form: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import Grammar, GrammarKind

Schema = dict[str, Any] | str  # as an object, or written out
Choices = Annotated[list[str], Meta(min_length=1)]

ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


class JsonSchema(msgspec.Struct, frozen=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None  # the answer follows the schema either way


class ResponseFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's; one of the first five is given, which disable_any_whitespace concerns if it is JSON."""

    json: Schema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None  # there is one engine of grammars


@dataclass(frozen=True, slots=True)
class AskedGrammar:
    grammar: Grammar
    param: str  # that asked for it

    def without_space(self) -> AskedGrammar:
        """If it is a JSON schema, without whitespace between JSON's tokens."""
        if self.grammar.kind is not GrammarKind.JSON_SCHEMA:
            return self
        return AskedGrammar(msgspec.structs.replace(self.grammar, has_space=False), self.param)


def from_response_format(asked: ResponseFormat | None, param: str) -> list[AskedGrammar]:
    """One, or none. param: the parameter that it was. Raises InvalidRequestError."""
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [AskedGrammar(ANY_OBJECT, param)]
    if param == "response_format":  # other protocols have no level more
        param += ".json_schema"
    if asked.json_schema is None:
        raise InvalidRequestError(f"Missing required parameter: '{param}'.", param=param, code="missing_parameter")
    schema = asked.json_schema.schema
    return [AskedGrammar(ANY_OBJECT if schema is None else json_grammar(schema), f"{param}.schema")]


def from_structured_outputs(asked: StructuredOutputs | None) -> list[AskedGrammar]:
    """One, or none. Raises InvalidRequestError."""
    if asked is None:
        return []
    found = grammars_of(asked, "structured_outputs.")
    if len(found) != 1:
        raise InvalidRequestError(
            "'structured_outputs' takes one of json, regex, choice, grammar, json_object.", param="structured_outputs"
        )
    return found


def grammars_of(asked: StructuredOutputs, prefix: str) -> list[AskedGrammar]:
    """All that it names. prefix: of the parameters' names."""
    found = {
        "json": None if asked.json is None else json_grammar(asked.json),
        "regex": None if asked.regex is None else Grammar(GrammarKind.REGEX, asked.regex),
        "choice": None if asked.choice is None else choice_grammar(asked.choice),
        "grammar": None if asked.grammar is None else rules_grammar(asked.grammar),
        "json_object": ANY_OBJECT if asked.json_object else None,
    }
    named = [AskedGrammar(grammar, f"{prefix}{name}") for name, grammar in found.items() if grammar]
    return [each.without_space() for each in named] if asked.disable_any_whitespace else named


def json_grammar(schema: Schema | bool) -> Grammar:
    """Raises InvalidRequestError."""
    try:
        text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    except RecursionError:
        raise InvalidRequestError("The JSON schema is nested too deeply.", code="invalid_grammar") from None
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def choice_grammar(choices: list[str]) -> Grammar:
    return Grammar(GrammarKind.CHOICE, msgspec.json.encode(choices).decode())


def rules_grammar(text: str) -> Grammar:
    return Grammar(GrammarKind.EBNF if "::=" in text else GrammarKind.LARK, text)
