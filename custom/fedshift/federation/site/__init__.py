"""A site's side of a round: train, score, and send what its policy allows."""
