"""lm-eval: local-completions, as its tasks use it."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from steps import BASE, KEY, MODEL, step, version

version("lm_eval")


def model(**options: Any) -> LocalCompletionsAPI:
    import os

    os.environ["OPENAI_API_KEY"] = KEY
    return LocalCompletionsAPI(
        base_url=f"{BASE}/completions",
        model=MODEL,
        tokenizer_backend=None,
        tokenized_requests=False,
        max_length=1024,
        max_retries=1,
        **options,
    )


def instance(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@step("generate_until")
def _() -> Any:
    return model().generate_until([instance("generate_until", "Hello", {"max_gen_toks": 8, "until": ["\n"]})])
