"""The same computations for data that arrive in portions."""
