"""Hooks into frameworks that tell of their work by themselves."""
