"""What is learned, and on whose data."""
