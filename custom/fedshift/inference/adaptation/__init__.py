"""Adapt a model to the scans of one hospital, with or without masks, and decide by evidence whether to keep it."""
