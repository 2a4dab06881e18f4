"""ai-toolkit, unmodified: one file in its `extensions/` folder, and what that file sets in motion."""
