"""Several devices at a site that share each batch: processes of the site's own, of which the first speaks to others."""
