"""Site data: manifest, where a site's folder is, cached arrays, checks."""
