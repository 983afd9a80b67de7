"""Attacks that a hostile site of a provisioned federation tries, each a few lines.

A module here has ``ATTACKS``, a tuple of functions that take a `Hostile` and a `Scene`, send what they send, and say in
their docstring what they want. `hostile` is the process that runs them, with a real kit; a test starts it beside an
honest federation and asserts what holds afterwards.
"""
