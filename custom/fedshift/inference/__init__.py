"""From a model file to a mask, a class, or a bundle that others can run."""
