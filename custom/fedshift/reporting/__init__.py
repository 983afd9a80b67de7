"""results.json and what people read from it."""
