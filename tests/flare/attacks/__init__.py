"""What a hostile site of a provisioned federation says, in harmless messages.

A module here has ``ATTACKS``, a tuple of functions that take a `Hostile` and a `Scene` and send what the guard drops or
refuses: wrong names with empty bodies, and a little more than the server's lowered bounds. `hostile` is the process
that runs them, with a real kit; a test starts it beside an honest federation and asserts what holds afterwards.
"""
