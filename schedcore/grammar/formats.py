"""Patterns for a JSON schema's formats where llguidance has none, or one that lets through what validators refuse.

A pattern may allow less than its format, never more: JSON Pointers without escapes are JSON Pointers.
"""

from __future__ import annotations

FOLLOWED = frozenset({"duration", "hostname", "ipv4", "ipv6", "uuid", "uri"})  # as llguidance does

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # 0001 to 9999
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
_LATE_DAY = "(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
_DATE = f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|{_LATE_DAY})|{_LEAP_YEAR}-02-29)"
# Second 60 is one only at midnight UTC of few days.
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,30}"  # never two hyphens in a row, which would mark another script's
# At most 61 characters before the @, and 185 after it: validators count.
_MAILBOX = "[a-zA-Z0-9!#$%&'*+/=?^_{|}~-]"
_EMAIL = rf"{_MAILBOX}(?:\.?{_MAILBOX}){{0,30}}@{_LABEL}(?:\.{_LABEL}){{0,2}}"
_PLAIN = "[a-zA-Z0-9._-]"  # of paths: nothing that needs an escape
_POINTER = f"(?:/{_PLAIN}*)*"
_SCHEME = "[a-zA-Z][a-zA-Z0-9+-]{0,15}"
_URI = f"{_SCHEME}://{_LABEL}(?:\\.{_LABEL}){{0,8}}(?:/{_PLAIN}*)*"
_RELATIVE = f"{_PLAIN}+(?:/{_PLAIN}*)*|/(?:{_PLAIN}+(?:/{_PLAIN}*)*)?"
_REFERENCE = rf"(?:{_URI}|{_RELATIVE})(?:\?{_PLAIN}*)?(?:#{_PLAIN}*)?"

PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "idn-hostname": r"[a-z0-9]{1,60}(?:\.[a-z0-9]{1,60}){0,3}",
    "uri-reference": _REFERENCE,
    "iri": _URI,
    "iri-reference": _REFERENCE,
    "uri-template": _REFERENCE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "regex": r"\^?(?:[a-zA-Z0-9_ -]|\.\*|\[a-z\]\+|\\\\d)*\$?",
}
