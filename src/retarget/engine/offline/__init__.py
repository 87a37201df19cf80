"""Offline learners that follow a stream: on all the past, or on recent samples."""
