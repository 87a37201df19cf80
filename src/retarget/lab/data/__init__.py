"""Data sets, one module each; where their files are stored, and how they are downloaded."""
