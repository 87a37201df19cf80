"""Tables of a user's, from a file or from memory, made into a stream of numbers."""
