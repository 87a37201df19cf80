"""The kernel of a stream: all of it in memory, or through features."""
