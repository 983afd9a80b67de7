"""What a site lets out of its house: its policy, the noise that it adds, and what that is worth."""
