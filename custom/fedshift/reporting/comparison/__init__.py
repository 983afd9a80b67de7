"""Run grids of tasks, methods, options and seeds, and make tables of their results."""
