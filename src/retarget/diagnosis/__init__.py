"""The stream in a user's file: what an online learner made of it, and what would have helped."""
