"""llguidance's messages for those who wrote the grammar: in one line, with the keyword that is the reason."""

from __future__ import annotations

import re

_PLAINER = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Unimplemented keys:", "these keywords are not supported:"),
        (
            r"oneOf constraints are not supported\. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
            '"oneOf" is not supported where more than one of its branches may hold; "anyOf" is',
        ),
        (
            r'min/maxProperties only supported when all keys listed in "properties" are required',
            '"minProperties" and "maxProperties" are not supported beside properties that are not required',
        ),
        (
            r"circular references with sibling keys are not supported:",
            '"$ref" to a schema that contains it is not supported beside other keywords:',
        ),
        (r"lookarounds not supported yet; \w+ in regex", '"pattern" with look-around is not supported:'),
        (r"patternProperty regexes (.*) are not disjoint", r'"patternProperties" have to exclude one another: \1'),
        (r"Resource '(.*)' is not present in a registry .*", r'"$ref" to another document is not supported: \1'),
        (r"Schema intersection stack level exceeded", '"allOf" and keywords beside "$ref" are nested too deeply'),
        (r" while processing json-schema:///(\S*)", r" (in \1)"),
    )
)
_IN_SCHEMA = re.compile(r"^(regex parse error: .*) while processing (\S+)$")


def readable(message: str) -> str:
    """Without its drawings."""
    lines = [line.strip() for line in message.splitlines()]
    message = " ".join(line for line in lines if line and line.strip("^ "))
    message = _IN_SCHEMA.sub(r'"pattern": \1 (in \2)', message)
    for pattern, words in _PLAINER:
        message = pattern.sub(words, message)
    return message
