"""A simulated cluster that writes the run directories of a training job. It knows nothing of how they are judged."""
