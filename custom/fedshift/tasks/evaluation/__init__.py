"""How good a model is at a site: scores of single cases, their spread and intervals, calibration, confusion."""
