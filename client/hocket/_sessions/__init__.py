"""`client.session()`: a conversation, and notices that its user types."""
