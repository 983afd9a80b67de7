"""Later scans against those that a model was trained on: what differs, since when, and which to look at."""
