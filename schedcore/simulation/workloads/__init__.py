"""What arrives: requests, their prompts and their times."""
