"""A plan from a survey: nnU-Net's published rules, written into a task file with a reason beside each number."""
