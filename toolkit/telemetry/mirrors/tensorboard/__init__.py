"""The run as TensorBoard event files."""
