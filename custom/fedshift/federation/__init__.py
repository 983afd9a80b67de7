"""A training round: resolving a job, the server, the sites, and all of them in one process."""
