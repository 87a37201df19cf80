"""The runs of experiments: their identity, their store, and how and where they are computed."""
