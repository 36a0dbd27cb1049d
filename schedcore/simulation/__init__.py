"""The simulator: the real scheduler under a virtual clock, with a latency model in the executor's place.

workloads/ says what arrives, engine.py (with model_shape.py and cost_model.py) what it runs on, simulator.py runs it,
report.py and plots.py say how it went. docs/metrics.md defines what they say. what_if.py serves the requests of a
decision record (schedcore/record/) again, under another policy; planning/ asks how many engines a day needs.
"""
