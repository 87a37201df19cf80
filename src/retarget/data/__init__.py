"""Data sets, each in a file of its own; where their files are, and how they are downloaded."""
