"""Adapters for the frameworks that people train with.

Import the module of your framework, `from retarget.integrations import lightning`; nothing is
imported before that. An adapter holds no mathematics: a correction or a learner of `retarget` goes
in, and objects of the framework come out.
"""
