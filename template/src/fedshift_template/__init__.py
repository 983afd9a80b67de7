"""Parts for fedshift. Each module is named by an entry point in ``pyproject.toml``."""
