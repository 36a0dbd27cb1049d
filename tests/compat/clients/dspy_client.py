"""dspy."""

from __future__ import annotations

from typing import Any, Literal

import dspy
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("dspy")
model = dspy.LM(f"openai/{MODEL}", api_base=BASE, api_key=KEY, cache=False, max_tokens=200, num_retries=0)


class Answer(dspy.Signature):
    """Which city?"""

    question: str = dspy.InputField()
    city: Literal["Rome", "Oslo"] = dspy.OutputField()


@step("chat")
def _() -> Any:
    return model(QUESTION)[0]


@step("typed output")
def _() -> Any:
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        return dspy.Predict(Answer)(question=QUESTION).city
