"""The worker's memory of sequences: a step is checked, applied, and made a batch of."""
