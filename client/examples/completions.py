"""Continue several texts in one request, and see how sure the model was."""

import hocket

with hocket.Client() as client:
    completion = client.completions.create(["One, two,", "Monday, Tuesday,"], max_tokens=8, logprobs=1, temperature=0)
    for choice in completion.choices:
        logprobs = [logprob for logprob in choice.logprobs.token_logprobs if logprob] if choice.logprobs else []
        print(f"{choice.text!r} {sum(logprobs):.2f}")
