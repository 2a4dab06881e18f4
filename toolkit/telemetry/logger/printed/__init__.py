"""Keeps what the process prints: one tap on its streams, from which the run's log and the error records are fed."""
