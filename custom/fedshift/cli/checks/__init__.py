"""What is checked before a party starts: one place each, for ``fedshift site check`` and ``fedshift doctor``."""
