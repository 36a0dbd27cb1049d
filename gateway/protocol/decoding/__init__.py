"""How bytes become checked values: what all bodies and queries have in common."""
