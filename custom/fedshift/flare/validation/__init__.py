"""A validation through FLARE: a job that brings finished models, which every site scores once."""
