"""Catch what you can do something about; the tree is at the top of hocket/_exceptions.py."""

import hocket

with hocket.Client(max_retries=1) as client:
    try:
        client.chat.create("Hello!", model="no-such-model")
    except hocket.NotFoundError as error:
        print("choose another model:", error.message)
    except hocket.RateLimitError as error:
        print("come back in", error.retry_after, "seconds")
    except hocket.APIConnectionError as error:
        print("is the server running?", error)
