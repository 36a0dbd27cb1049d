"""The Python face of the scheduling core: types, wire format, configuration.

Imports nothing of gateway or worker, and no torch.
"""
