"""The simulator: the real scheduler under a virtual clock, with a latency model in the executor's place.

workload.py (with token_ids.py, traces.py and arrivals.py) says what arrives, engine.py (with model_shape.py and
cost_model.py) what it runs on, simulator.py runs it, report.py and plots.py say how it went. docs/metrics.md defines
what they say.

replay.py repeats the calls of a decision record; recorded_requests.py and what_if.py serve its requests under another
policy.
"""
