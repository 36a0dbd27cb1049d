"""Seam 5: the world and us. Bytes become validated requests, results become OpenAI's shapes; raw JSON dies here."""
