"""The diagnosis of a user's stream: what an online learner has learned, and what would help."""
