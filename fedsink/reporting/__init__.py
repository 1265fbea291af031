"""Output of a run: progress, drawings of samples, loggers of metrics, and files."""
