"""A small model that guesses what requests will say next."""
