"""Comparisons of methods: grids of runs, tables, tests of significance, leaderboards."""
