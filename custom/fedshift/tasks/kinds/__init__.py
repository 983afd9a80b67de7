"""One module for each kind of task, found by module name."""
