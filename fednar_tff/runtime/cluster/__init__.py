"""A round spread over the machines of a Ray cluster."""
