"""Reading many runs: statistics, tables, figures. Imports neither TensorFlow nor what runs them."""
