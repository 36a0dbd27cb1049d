"""What a schema becomes for llguidance: never anything that allows more. jsonschema is the oracle."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedcore.grammar.json_schema import MAX_INLINED, followable, followable_tree

MISSING = object()
OBJECTS = [
    {name: value for name, value in zip("abc", values, strict=True) if value is not MISSING}
    for values in itertools.product((MISSING, 1, "x"), repeat=3)
]
INSTANCES = [None, True, 1, 1.0, "x", "y", [], *OBJECTS]

NAMES = st.lists(st.sampled_from("abc"), max_size=3, unique=True)
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, {}, {"type": "integer"}, {"type": "string"}, {"const": 1}, {"const": "x"}, {"enum": [1.0, "y"]}]
)
REFERENCES = st.sampled_from([{"$ref": "#/$defs/first"}, {"$ref": "#/$defs/second", "title": "T"}])


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.just("object"),
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        "required": NAMES,
        "oneOf": st.lists(inner, min_size=2, max_size=3),
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), NAMES, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from("abc"), inner, max_size=1),
        "description": st.just("D"),
    }
    return st.fixed_dictionaries({}, optional=keywords)


ALONE = st.recursive(LEAVES, objects, max_leaves=4)
SCHEMAS = st.recursive(LEAVES | REFERENCES, objects, max_leaves=8)


def accepts(schema: Any, instance: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(instance)


@settings(max_examples=300, deadline=None)
@given(ALONE, ALONE, objects(SCHEMAS))
def test_what_it_becomes_allows_nothing_more(first: Any, second: Any, schema: dict[str, Any]) -> None:
    schema["$defs"] = {"first": first, "second": second}
    before = copy.deepcopy(schema)
    said = followable_tree(schema)
    assert schema == before
    for instance in INSTANCES:
        assert not accepts(said, instance) or accepts(schema, instance), (said, instance)


def one_of(*required: str) -> dict[str, Any]:
    return {"type": "object", "oneOf": [{"required": list(names)} for names in required]}


@pytest.mark.parametrize(
    "schema",
    [
        one_of("a", "b"),
        one_of("a", "b", "c"),
        {"dependentRequired": {"a": ["b", "c"]}},
        {"dependencies": {"a": ["b"]}, "$schema": "http://json-schema.org/draft-07/schema#"},
        {"dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}}}},
    ],
)
def test_these_allow_as_much_as_before(schema: dict[str, Any]) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    before, after = kind(schema), kind(followable_tree(schema))
    assert [before.is_valid(i) for i in OBJECTS] == [after.is_valid(i) for i in OBJECTS]


def test_branches_are_what_they_refer_to() -> None:
    cat = {"type": "object", "properties": {"kind": {"$ref": "#/$defs/meow"}}, "required": ["kind"]}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}
    defs = {"cat": cat, "dog": dog, "meow": {"const": "cat"}}
    branches = [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]
    said = followable_tree({"$defs": defs, "oneOf": branches})["oneOf"]
    assert said == [cat | {"properties": {"kind": {"const": "cat"}}}, dog]


def test_a_choice_within_itself_ends() -> None:
    tree = {"oneOf": [{"type": "null"}, {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}]}
    assert len(followable(json.dumps(tree))) < MAX_INLINED


def test_what_is_taken_in_is_bounded() -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}}
    choice = {"oneOf": [{"$ref": "#/$defs/large"}, {"type": "null"}]}
    schema = {"$defs": {"large": large}, "properties": {f"q{i}": choice for i in range(200)}}
    assert len(followable(json.dumps(schema))) < 2 * MAX_INLINED


def test_parts_with_a_name_of_their_own_stay_where_they_are() -> None:
    schema = {"$defs": {"a": {"$id": "other", "type": "object"}}, "oneOf": [{"$ref": "#/$defs/a"}]}
    assert followable_tree(schema) == schema


def test_annotations_go_and_properties_of_their_names_stay() -> None:
    names = ("title", "description", "format", "enum", "$comment")
    schema = {"title": "T", "properties": {name: {"type": "string", "description": "D"} for name in names}}
    assert followable_tree(schema) == {"properties": {name: {"type": "string"} for name in names}}


def test_llguidances_own_options_are_not_the_clients_to_set() -> None:
    schema = {"x-guidance": {"coerce_one_of": True}, "oneOf": [{"type": "integer"}, {"type": "number"}]}
    assert json.loads(followable(json.dumps(schema))) == {"oneOf": schema["oneOf"]}


def test_formats_that_no_draft_knows_say_nothing() -> None:
    assert followable_tree({"type": "string", "format": "file-path"}) == {"type": "string"}
    assert followable_tree({"type": "string", "format": "uuid"}) == {"type": "string", "format": "uuid"}


def test_a_format_goes_with_a_pattern() -> None:
    said = followable_tree({"type": "string", "format": "date", "pattern": "^2"})
    assert [accepts(said, text) for text in ("2024-02-29", "2023-02-29", "1999-01-01")] == [True, False, False]


def test_values_are_not_looked_into() -> None:
    schema = {"enum": [{"title": "T", "format": "odd"}], "default": {"description": "D"}}
    assert followable_tree(schema) == schema


@pytest.mark.parametrize("text", ["{", "", '{"a": NaN'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|value"):
        followable(text)
