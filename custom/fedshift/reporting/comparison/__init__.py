"""Grids of runs: tasks, methods, options and seeds side by side, and the tables that come of them."""
