"""Data preparation: one module per data set, from the public download to prepared site folders."""
