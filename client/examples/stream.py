"""Print the answer while it is generated; then what it cost."""

import hocket

with hocket.Client() as client, client.chat.stream("Tell me a short story.", max_tokens=200) as stream:
    for chunk in stream:
        print(chunk.text, end="", flush=True)

print()
print(f"{stream.usage.completion_tokens if stream.usage else 0} tokens, first after {stream.timings.ttft_ms:.0f} ms")
