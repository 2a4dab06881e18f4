"""Records trainings of an unmodified ai-toolkit checkout, through one file in its `extensions/` folder."""
