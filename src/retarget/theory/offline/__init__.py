"""The offline learner for cross-entropy."""
