"""A survey through FLARE: a job of its own with one task, which every site answers once."""
