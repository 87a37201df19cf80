"""The paper's mathematics on (K, Y): pure functions, one idea per file."""
