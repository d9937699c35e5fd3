"""One local step: optimizers of the `tff.learning.optimizers` interface."""
