"""Evaluation of a model at a site: scores by case, their distribution and intervals, surface distances, calibration."""
