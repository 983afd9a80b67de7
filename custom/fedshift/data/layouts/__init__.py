"""Layouts of folders: each is recognised by a function that makes a table of cases of it (`fedshift.data.cases`)."""
