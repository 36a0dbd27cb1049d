"""`/v1/responses`: its answer, whole or as events, kept for later, or made while nobody waits."""
