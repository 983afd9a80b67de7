"""A survey: what every site tells of its data under its policy, their sum, and how far apart the sites are."""
