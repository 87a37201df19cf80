"""The learners run over a stream, and what they are compared by."""
