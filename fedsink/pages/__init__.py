"""Pages about runs: one file each, without scripts and without network."""
