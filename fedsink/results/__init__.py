"""Results of a run that has ended: figures, pages, and a verdict on its promise."""
