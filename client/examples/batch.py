"""Many requests that can wait: the results come as they land."""

import hocket

with hocket.Client() as client:
    questions = [f"What is {n} + {n}?" for n in range(1, 9)]
    for result in client.batches.run(questions, params={"max_tokens": 32}):
        print(questions[result.index or 0], result.text if result.is_ok else result.error)
