"""The handlers of offline work: files and batches."""
