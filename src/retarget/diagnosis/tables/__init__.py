"""The user's tables, from a file or from memory, made into a stream of numbers."""
