"""Corrected targets for a network, and how far it is from its linearization."""
