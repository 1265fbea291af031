"""Pages about runs: one file for each page, without scripts and without network."""
