"""What a site's policy lets leave, and the noise that is added to it."""
