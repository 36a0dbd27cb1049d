"""Many engines behind route(): by rate (fleet.py), or each with the real scheduler (cluster.py)."""
