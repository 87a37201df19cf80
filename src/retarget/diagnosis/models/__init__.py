"""Runs the user's own model over the stream that is diagnosed."""
