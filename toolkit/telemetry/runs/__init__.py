"""One read model of runs: the same answers for the command line, for reports and for the pages."""
