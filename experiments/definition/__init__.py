"""What a run is: settings, the catalogue of choices, presets, the paper's numbers. Imports no TensorFlow."""
