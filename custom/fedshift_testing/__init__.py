"""What a package of one's own is tested with: small sites and jobs, and the checks that every method passes."""
