"""What `make test-compat-vllm` makes of results: reasons that are missing, and reasons that nothing needs."""

from __future__ import annotations

import tomllib

from compat import vllm_tests as runner

REASONS: list[runner.Reason] = [
    {"why": "No such model.", "tests": ["::test_a:", "::test_b:.*names"]},
    {"why": "Words.", "tests": ["::test_c:"]},
]


def found(**problems: str | None) -> list[runner.Found]:
    files = [runner._short_file(file) for file in runner.FILES]
    passed = [runner.Found(file, "test_other", None) for file in files]
    return [*passed, *(runner.Found(files[0], test, problem) for test, problem in problems.items())]


def wrong(one: list[runner.Found]) -> list[str]:
    return runner.wrong(one, one, runner.FILES, REASONS)


def test_each_failure_needs_a_reason() -> None:
    failing = {"test_a": "x", "test_b": "it names 7", "test_c": "y"}
    assert wrong(found(**failing)) == []
    (told,) = wrong(found(**failing, test_d="z"))
    assert told.startswith("without a reason: ")
    assert told.endswith("::test_d: z")
    told = wrong(found(**failing | {"test_b": "another problem"}))
    assert [line.partition(":")[0] for line in told] == ["without a reason", "not needed"]


def test_a_reason_of_what_passes_is_wrong() -> None:
    assert wrong(found(test_a="x", test_b="it names 7", test_c=None)) == ["not needed: ::test_c:"]
    doubled = [*REASONS, {"why": "Again.", "tests": ["::test_"]}]
    every = found(test_a="x", test_b="it names 7", test_c="y")
    assert runner.superfluous(every, doubled) == ["::test_"]


def test_a_file_without_results_is_wrong() -> None:
    every = found(test_a="x", test_b="it names 7", test_c="y")
    missing = runner._short_file(runner.FILES[-1])
    some = [one for one in every if one.file != missing]
    assert runner.wrong(some, some, runner.FILES, REASONS) == [f"found nothing: {runner.FILES[-1]}"]
    assert runner.wrong(some, some, runner.FILES[:1], REASONS) == []


def test_the_reasons_are_sentences_with_patterns() -> None:
    reasons = tomllib.loads(runner.REASONS.read_text())["reason"]
    for each in reasons:
        assert {"why", "tests"} <= each.keys() <= {"why", "tests", "sometimes"}
        assert each["tests"]
        assert each["why"].endswith(".")
