"""A survey: what every site tells of its data under its policy, their sum, and how far the sites are from each other."""
