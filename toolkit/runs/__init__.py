"""What a list of runs says about each: the same for the command line, for reports and for the pages."""
