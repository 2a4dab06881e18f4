"""What must not leave the process is taken out before anything is written."""
