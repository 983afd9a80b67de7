"""Methods against feature shift: one file per method, found by its file name.

`base` is what a method implements. `method_set` loads a job's methods, `chain` calls their client halves at a site, and
``shared/`` holds what several methods use.
"""
