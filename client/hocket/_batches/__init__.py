"""`client.batches`: rows become batches, batches become results."""
