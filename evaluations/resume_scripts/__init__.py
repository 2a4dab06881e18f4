"""The trainings that are resumed: each is copied, and run as a script of its own."""
