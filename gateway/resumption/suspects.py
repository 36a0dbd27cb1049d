"""Who of those that an engine had may have killed it. Pure.

Most deaths are nobody's fault: a machine short of memory, a driver, an operator. So a first death is held against
nobody, and everybody goes on. A request that kills does so again where it did before, with the first thing that the
next engine computes of it. Suspects of a further death are therefore those that had outlived one already and had got
nothing from this engine: who has got a token from it is past the place where it would have died.

One suspect is guilty. Of several, nobody is: they go on one at a time, each when the one before has got something, and
if the engine dies once more, there is one suspect. Whoever is innocent is failed only if engines die twice in the
moments in which it was the only one to be tried.

What kills slowly, wherever it is (memory that leaks with every token), is never caught in the act: MAX_DEATHS bounds
what one request may do, well before the engine is given up for all (restart_policy.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.resumption.open_request import OpenRequest

MAX_DEATHS = 5  # of engines that had a request


def judge(fallen: Sequence[OpenRequest]) -> list[OpenRequest]:
    """Those that do not go on. `fallen`: all that a dead engine had, its death counted. Suspects are marked."""
    suspects = [one for one in fallen if one.num_deaths > 1 and not one.is_proven]
    for one in suspects:
        one.is_suspect = True
    guilty = suspects if len(suspects) == 1 else []
    return [*guilty, *(one for one in fallen if one.num_deaths >= MAX_DEATHS and one not in guilty)]


def verdict(one: OpenRequest) -> str:
    """For its client."""
    times = "twice" if one.num_deaths == 2 else f"{one.num_deaths} times"
    return f"This request was running when the engine died {times}."
