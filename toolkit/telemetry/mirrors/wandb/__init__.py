"""The run in Weights & Biases."""
