"""What a site does: seeding, precision, local training, evaluation, state files."""
