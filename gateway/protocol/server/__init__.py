"""What a server says of itself, and the description of its routes, from which /openapi.json is made."""
