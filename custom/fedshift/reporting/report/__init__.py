"""The HTML report of finished runs: one module a kind of section, put together by `fedshift.reporting.report.page`."""
