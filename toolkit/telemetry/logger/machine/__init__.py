"""Says what this machine is and does, off the training thread."""
