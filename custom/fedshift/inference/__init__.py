"""Inference from a model file: masks, classes, and exported models."""
