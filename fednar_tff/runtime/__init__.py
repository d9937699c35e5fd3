"""Where and how computations run."""
