"""A hundred JSON schemas of the kinds that applications send, by name."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def obj(required: bool = True, **properties: Schema) -> Schema:
    names = list(properties) if required else []
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


TEXT: Schema = {"type": "string", "maxLength": 12}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
OPEN: Schema = {"additionalProperties": True, "maxProperties": 2}
TREE_NODE = obj(value=NUMBER, children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2})

STRINGS: dict[str, Schema] = {
    **{f"length {a} to {b}": {"type": "string", "minLength": a, "maxLength": b} for a, b in ((0, 0), (1, 1), (3, 9))},
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in (
            "date",
            "time",
            "date-time",
            "duration",
            "email",
            "idn-email",
            "hostname",
            "idn-hostname",
            "ipv4",
            "ipv6",
            "uuid",
            "uri",
            "uri-reference",
            "uri-template",
            "iri",
            "iri-reference",
            "json-pointer",
            "regex",
            "relative-json-pointer",
            "file-path",
        )
    },
    **{
        f"pattern {pattern}": {"type": "string", "pattern": pattern}
        for pattern in ("^[a-z]{2,5}$", r"^\d{4}-\d{2}$", "^(red|green)$", "^[A-Z][a-z]{0,3} [0-9]$", "^a?b{2}$")
    },
    "unanchored pattern": {"type": "string", "pattern": "ab", "maxLength": 20},
    "quotes in a constant": {"const": 'say "hi" \\ \n'},
    "beyond ASCII": {"enum": ["é", "日本", "🎈"]},
}
NUMBERS: dict[str, Schema] = {
    **{
        f"integer {a} to {b}": {"type": "integer", "minimum": a, "maximum": b}
        for a, b in ((0, 0), (0, 9), (-5, 5), (7, 12345), (-1000, -998))
    },
    "integer above": {"type": "integer", "exclusiveMinimum": 3, "maximum": 20},
    "integer below": {"type": "integer", "minimum": 3, "exclusiveMaximum": 20},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "number 0 to 1": {"type": "number", "minimum": 0, "maximum": 1},
    "number -2.5 to 2.5": {"type": "number", "minimum": -2.5, "maximum": 2.5},
    "number above 0": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "number or null": {"type": ["integer", "null"], "minimum": 0, "maximum": 10},
    "truth": {"type": "boolean"},
    "nothing": {"type": "null"},
}
ENUMS: dict[str, Schema] = {
    "strings": {"enum": ["a", "b", "ab", ""]},
    "mixed": {"enum": ["a", 1, None, True, 2.5]},
    "objects": {"enum": [{"a": 1}, [1, 2], "x"]},
    "many": {"enum": [f"value {i}" for i in range(300)]},
    "constant object": {"const": {"a": [1, {"b": None}]}},
    "typed": {"type": "string", "enum": ["x", "y"]},
}
ARRAYS: dict[str, Schema] = {
    **{
        f"{a} to {b} items": {"type": "array", "items": NUMBER, "minItems": a, "maxItems": b}
        for a, b in ((0, 0), (0, 3), (2, 2), (3, 6))
    },
    "of objects": {"type": "array", "items": obj(a=NUMBER), "minItems": 1, "maxItems": 3},
    "of arrays": {"type": "array", "items": {"type": "array", "items": NUMBER, "maxItems": 2}, "maxItems": 2},
    "tuple": {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False, "minItems": 2},
    "tuple and more": {"type": "array", "prefixItems": [TEXT], "items": NUMBER, "minItems": 1, "maxItems": 4},
    "of enums": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 5},
    "of choices": {"type": "array", "items": {"anyOf": [NUMBER, TEXT]}, "minItems": 1, "maxItems": 3},
}
OBJECTS: dict[str, Schema] = {
    "empty": obj(),
    "person": obj(name=TEXT, age=NUMBER),
    "all optional": obj(required=False, a=NUMBER, b=TEXT, c={"type": "boolean"}),
    "some optional": {**obj(a=NUMBER, b=TEXT), "required": ["b"]},
    "nested": obj(a=obj(b=obj(c=obj(d=NUMBER)))),
    "names to quote": obj(**{'a "b"': NUMBER, "c\\d": NUMBER, "é": NUMBER, "with space": NUMBER}),
    "map": {"type": "object", "additionalProperties": NUMBER, "maxProperties": 3},
    "map by pattern": {"type": "object", "patternProperties": {"^k[0-9]$": NUMBER}, "additionalProperties": False},
    "fields and a map": {
        "type": "object",
        "properties": {"a": NUMBER},
        "required": ["a"],
        "additionalProperties": NUMBER,
    },
    "required but unnamed": {"type": "object", "properties": {"a": NUMBER}, "required": ["a", "b"]},
    "many fields": obj(**{f"field_{i}": NUMBER for i in range(30)}),
    "open": {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]},
    "with words": {"title": "T", "description": "D", "type": "object", "properties": {"a": {**NUMBER, "default": 3}}},
}
CHOICES: dict[str, Schema] = {
    "any of types": {"anyOf": [NUMBER, TEXT, {"type": "null"}]},
    "any of objects": {"anyOf": [obj(a=NUMBER), obj(b=TEXT)]},
    "tagged": {"oneOf": [obj(kind={"const": "a"}, x=NUMBER), obj(kind={"const": "b"}, y=TEXT)]},
    "tagged by references": {
        "$defs": {"a": obj(kind={"const": "a"}, x=NUMBER), "b": obj(kind={"const": "b"}, y=TEXT)},
        **obj(of={"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}),
    },
    "one of what is required": {
        **obj(required=False, a=NUMBER, b=NUMBER, c=NUMBER),
        "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}],
    },
    "one of open objects": {"oneOf": [{**obj(a=NUMBER, b=TEXT), **OPEN}, {**obj(a=NUMBER, c=TEXT), **OPEN}]},
    "dependent": {**obj(required=False, a=NUMBER, b=NUMBER), "dependentRequired": {"a": ["b"]}},
    "one of types": {"oneOf": [NUMBER, TEXT]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]},
            {"type": "object", "properties": {"b": NUMBER}, "required": ["b"]},
        ]
    },
    "types": {"type": ["string", "integer"], "maxLength": 4, "minimum": 0, "maximum": 9},
    "optional field": obj(a={"anyOf": [NUMBER, {"type": "null"}]}),
}
REFERENCES: dict[str, Schema] = {
    "defs": {"$defs": {"n": NUMBER}, **obj(a={"$ref": "#/$defs/n"}, b={"$ref": "#/$defs/n"})},
    "definitions": {"definitions": {"n": TEXT}, **obj(a={"$ref": "#/definitions/n"})},
    "tree": {"$defs": {"node": TREE_NODE}, "$ref": "#/$defs/node"},
    "list": {
        "$defs": {"l": {"anyOf": [{"type": "null"}, obj(v=NUMBER, next={"$ref": "#/$defs/l"})]}},
        "$ref": "#/$defs/l",
    },
    "itself": obj(required=False, a=NUMBER, next={"$ref": "#"}),
    "path": obj(a=NUMBER, b={"$ref": "#/properties/a"}),
}
APPLICATIONS: dict[str, Schema] = {
    "invoice": obj(
        number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
        date={"type": "string", "format": "date"},
        lines={"type": "array", "items": obj(text=TEXT, amount=NUMBER), "minItems": 1, "maxItems": 3},
        paid={"type": "boolean"},
    ),
    "sentiment": obj(
        label={"enum": ["positive", "negative", "neutral"]}, score={"type": "number", "minimum": 0, "maximum": 1}
    ),
    "steps": obj(steps={"type": "array", "items": obj(explanation=TEXT, output=TEXT), "maxItems": 2}, answer=TEXT),
    "weather call": obj(city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    "search call": obj(
        query=TEXT,
        top_k={"type": "integer", "minimum": 1, "maximum": 20},
        filters={"type": ["string", "null"], "maxLength": 9},
    ),
    "extraction": obj(
        people={"type": "array", "items": obj(name=TEXT, role={"enum": ["a", "b"]}), "maxItems": 3}, place=TEXT
    ),
    "grades": obj(
        **{subject: {"type": "integer", "minimum": 1, "maximum": 6} for subject in ("maths", "art", "sport")}
    ),
    "point": obj(x={"type": "number", "minimum": -1, "maximum": 1}, y={"type": "number", "minimum": -1, "maximum": 1}),
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
    "settings": obj(
        required=False,
        theme={"enum": ["dark", "light"]},
        size=NUMBER,
        name=TEXT,
        flags={"type": "array", "items": TEXT, "maxItems": 2},
    ),
}
GROUPS = {
    "string": STRINGS,
    "number": NUMBERS,
    "enum": ENUMS,
    "array": ARRAYS,
    "object": OBJECTS,
    "choice": CHOICES,
    "reference": REFERENCES,
    "application": APPLICATIONS,
}
IN_ARRAYS = {f"list of {name}": {"type": "array", "items": schema, "maxItems": 2} for name, schema in NUMBERS.items()}
SCHEMAS: dict[str, Schema] = {
    **{f"{group}: {name}": schema for group, schemas in GROUPS.items() for name, schema in schemas.items()},
    **IN_ARRAYS,
}
