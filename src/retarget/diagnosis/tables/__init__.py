"""Turns a user's table, from a file or from memory, into a stream of numbers."""
