"""Data sets, each in a file of its own; where their files lie, and how they are downloaded."""
