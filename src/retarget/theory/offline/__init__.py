"""The offline learners that the iterative correction leads to."""
