"""Compatibility with code written for other loggers; import the module you need."""
