"""A stream in windows, and learners that follow it: what everything else is computed with."""
