"""Plain, checked data that every other folder uses: jobs, messages, manifests, results, errors."""
