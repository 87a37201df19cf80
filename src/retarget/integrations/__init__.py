"""Adapters for training frameworks.

Import the module for your framework, for example `from retarget.integrations import lightning`;
nothing is imported before that. An adapter contains no mathematics: it wraps a correction or a
learner of `retarget` in objects of the framework.
"""
