"""The user's own model, run for real over the stream that is diagnosed."""
