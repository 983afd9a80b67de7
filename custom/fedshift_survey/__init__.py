"""What sites tell of their data before a job and after it: survey, plan, map of the shift, drift."""
