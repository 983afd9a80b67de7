"""What is learned: kinds of task, networks, evaluation, device and precision."""
