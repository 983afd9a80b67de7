"""The server's side of a round: check updates, combine them, select the best round."""
