"""Runs the learners over a stream and compares them."""
