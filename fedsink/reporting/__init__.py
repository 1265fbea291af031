"""What a run shows and leaves behind: progress, pictures of samples, metrics, files of samples."""
