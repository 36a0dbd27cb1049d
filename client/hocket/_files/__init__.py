"""`client.files`: up, down, and what the server keeps."""
