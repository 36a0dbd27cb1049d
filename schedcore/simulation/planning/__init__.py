"""How many engines a day of traffic needs, and what offline work fits beside it."""
