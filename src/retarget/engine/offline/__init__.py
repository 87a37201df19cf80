"""Offline learners that follow a stream: on all the past, on recent samples, logistic."""
