"""Answers as they are generated."""
