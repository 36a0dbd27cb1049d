"""Ask, and ask again: the answer's message goes back into the conversation."""

import hocket

with hocket.Client() as client:
    messages: list[hocket.Message] = [hocket.Message("user", "What is 7 + 5?")]
    answer = client.chat.create(messages, max_tokens=64)
    print(answer.text)

    messages += [answer.message, hocket.Message("user", "And twice that?")]
    print(client.chat.create(messages, max_tokens=64, temperature=0).text)
