"""The kernel of an infinitely wide network, computed by one of three engines."""
