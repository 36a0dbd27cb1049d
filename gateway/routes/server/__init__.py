"""The handlers of what a server says of itself, and of what its operator may open."""
