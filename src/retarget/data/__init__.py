"""Data sets, each in a file of its own."""
