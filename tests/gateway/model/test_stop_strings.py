"""Stop strings against brute force, however the text is cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.model.stop_strings import StopScanner, StopStrings

letters = st.text("ab", min_size=0, max_size=30)
stops = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def first_stop(text: str, strings: list[str]) -> tuple[str, str | None]:
    """The oracle: character by character, the longest stop string that ends there."""
    for end in range(1, len(text) + 1):
        endings = [string for string in strings if text[:end].endswith(string)]
        if endings:
            longest = max(endings, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def scan_all(pieces: list[str], strings: list[str]) -> tuple[list[str], str | None]:
    scanner = StopScanner(StopStrings(strings))
    shown = []
    for piece in pieces:
        safe, stop = scanner.scan(piece)
        shown.append(safe)
        if stop is not None:
            return shown, stop
    return [*shown, scanner.flush()], None


@given(letters, stops, st.lists(st.integers(0, 30), max_size=8))
def test_finds_what_brute_force_finds_however_the_text_is_cut(text: str, strings: list[str], cuts: list[int]) -> None:
    shown, stop = scan_all(cut(text, cuts), strings)
    assert ("".join(shown), stop) == first_stop(text, strings)


@given(letters, stops)
def test_holds_back_exactly_what_may_begin_a_stop_string(text: str, strings: list[str]) -> None:
    scanner = StopScanner(StopStrings(strings))
    before, stop = first_stop(text, strings)
    safe, found = scanner.scan(text)
    assert found == stop
    if stop is None:
        prefixes = {string[:n] for string in strings for n in range(1, len(string))}
        held = max(n for n in range(len(text) + 1) if n == 0 or text[-n:] in prefixes)
        assert safe == text[: len(text) - held]
    else:
        assert safe == before


def test_unrelated_text_passes_through() -> None:
    scanner = StopScanner(StopStrings(["\n\n"]))
    assert scanner.scan("a line") == ("a line", None)
    assert scanner.scan("\n") == ("", None)
    assert scanner.scan("more") == ("\nmore", None)
