"""Offline learners besides ridge regression on all the past, for which one factor is enough."""
