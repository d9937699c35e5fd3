"""Many rounds: sampling, evaluation, checkpoints, metrics and client states."""
