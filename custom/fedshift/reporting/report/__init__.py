"""The HTML report of finished runs: one module per kind of section, assembled by `fedshift.reporting.report.page`."""
