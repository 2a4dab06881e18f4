"""Real small trainings whose fault is known, because we put it there."""
