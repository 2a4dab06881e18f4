"""The training toolkit: run folders, the logger that writes them, and a small LoRA trainer to try both on."""
